// A parser of server-sent events. The bytes can be split anywhere: within a line, within a
// character, between CR and LF. https://html.spec.whatwg.org/multipage/server-sent-events.html

/** Yields the data of each event in a stream of bytes. */
export async function* eventData(stream) {
  const decoder = new TextDecoder(); // keeps the beginning of a character for the next chunk
  const reader = stream.getReader();
  const data = [];
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      // A CR at the end may be the first half of CR LF.
      const lines = rest.split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "" && data.length) yield data.splice(0).join("\n");
        else if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
