// Text fields of messages: their height, and the key that sends.

/** Returns whether the main pointer is a finger, so the keyboard is probably one on the screen. */
export function isTouch() {
  return matchMedia("(pointer: coarse)").matches;
}

/** Makes a text field as high as its text. */
export function fit(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

/** Returns whether a key sends the text. On a phone, Enter starts a new line. */
export function isSendKey(event) {
  return event.key === "Enter" && !event.shiftKey && !isComposing(event) && !isTouch();
}

/** Returns whether an input method uses a key itself, for instance Enter to accept a word. */
export function isComposing(event) {
  // Safari ends the composition before this event, and then only the code says so.
  return event.isComposing || event.keyCode === 229;
}
