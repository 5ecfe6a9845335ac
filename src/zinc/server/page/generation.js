// A running answer: reads the stream into an assistant's node and measures its speed.
//
// The final speed comes from the server's timings in the last chunk. Until then, and if the answer
// is stopped, it is estimated from the number of chunks, which is about one per token.

import { ApiError } from "./api.js";

const MAX_WAIT_S = 600; // for a model to be loaded
const TICK_MS = 500;

export class Generation {
  /**
   * @param {object} node the assistant's message, filled while the stream is read
   * @param {() => void} changed is called after every change
   * @param {() => void} ticked is called every half second to update shown times
   */
  constructor(api, node, body, changed, ticked) {
    this.api = api;
    this.node = node;
    this.body = body;
    this.changed = changed;
    this.ticked = ticked;
    this.controller = new AbortController();
    this.waiting = ""; // why nothing comes yet
    this.begun = performance.now();
    this.started = 0; // the request that is answered: later when a model had to be waited for
    this.firstAt = 0;
    this.reasoningSince = 0;
    this.chunks = 0;
  }

  stop() {
    this.controller.abort();
  }

  /** Reads the answer to its end. Never throws: a failure is stored in `node.error`. */
  async run() {
    const { node } = this;
    node.finish = null;
    node.error = null;
    const clock = setInterval(this.ticked, TICK_MS);
    try {
      await this.read();
    } catch (error) {
      if (this.controller.signal.aborted) node.finish = "stopped";
      else if (error instanceof ApiError) node.error = describe(error);
      else node.error = { message: "The answer could not be read.", status: 0 };
    }
    clearInterval(clock);
    this.endReasoning();
    node.stats ??= this.estimate();
    this.waiting = "";
    this.changed();
  }

  /** Seconds since the request was sent. */
  get elapsedMs() {
    return performance.now() - this.begun;
  }

  /** Tokens per second so far, or null if there are none yet. */
  get rate() {
    const seconds = (performance.now() - this.firstAt) / 1000;
    return this.chunks > 1 && seconds > 0.2 ? (this.chunks - 1) / seconds : null;
  }

  get reasoningMs() {
    return this.reasoningSince ? performance.now() - this.reasoningSince : this.node.reasoningMs;
  }

  get isReasoning() {
    return this.reasoningSince > 0;
  }

  async read() {
    const deadline = performance.now() + MAX_WAIT_S * 1000;
    for (;;) {
      this.started = performance.now();
      try {
        for await (const chunk of this.api.chat(this.body, this.controller.signal)) {
          this.take(chunk);
          this.changed();
        }
        return;
      } catch (error) {
        // Retry while the model is loading or the queue is full.
        const busy = error.code === "model_loading" || error.status === 429;
        if (!busy || this.chunks || performance.now() > deadline) throw error;
        this.waiting = error.status === 429 ? "The server is busy" : "The model is being loaded";
        this.changed();
        await pause((error.retryAfterS ?? 1) * 1000, this.controller.signal);
      }
    }
  }

  take(chunk) {
    const { node } = this;
    node.model = chunk.model ?? node.model;
    if (chunk.usage) this.count(chunk);
    const choice = chunk.choices?.[0];
    if (!choice) return;
    this.waiting = "";
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
    if (content || reasoning || calls) {
      this.firstAt ||= performance.now();
      this.chunks += 1;
    }
    if (reasoning) {
      this.reasoningSince ||= performance.now();
      node.reasoning += reasoning;
    }
    if (content || calls) this.endReasoning();
    if (content) node.content += content;
    for (const call of calls ?? []) this.takeCall(call);
    if (choice.finish_reason) node.finish = choice.finish_reason;
    if (chunk.timings) this.measure(chunk.timings);
  }

  takeCall({ index, id, function: called = {} }) {
    const { calls } = this.node;
    const call = (calls[index] ??= { id: "", name: "", arguments: "" });
    if (id) call.id = id;
    if (called.name) call.name += called.name;
    if (called.arguments) call.arguments += called.arguments;
  }

  endReasoning() {
    if (!this.reasoningSince) return;
    this.node.reasoningMs += performance.now() - this.reasoningSince;
    this.reasoningSince = 0;
  }

  measure(timings) {
    this.node.stats = {
      ...this.node.stats,
      tokens: timings.predicted_n,
      rate: timings.predicted_per_second,
      promptRate: timings.prompt_per_second,
      acceptedTokens: timings.draft_n_accepted ?? 0,
      firstMs: this.firstAt ? this.firstAt - this.started : timings.prompt_ms,
    };
  }

  count({ usage }) {
    this.node.stats = {
      ...this.node.stats,
      tokens: usage.completion_tokens,
      promptTokens: usage.prompt_tokens,
      cachedTokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
      contextTokens: usage.total_tokens,
    };
  }

  /** Returns estimated statistics of an answer without timings of the server. */
  estimate() {
    if (!this.chunks) return null;
    const found = { tokens: this.chunks, estimated: 1, firstMs: this.firstAt - this.started };
    return this.rate === null ? found : { ...found, rate: this.rate };
  }
}

function describe({ status, message, code }) {
  return { status, message, code };
}

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}
