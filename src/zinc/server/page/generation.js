// One answer on its way: reads the stream into an assistant's node and measures it.
//
// Rates come from the server's own timings with the last chunk; until then, and for an answer that
// was stopped, they are estimated from the chunks, of which a server sends about one a token.

import { ApiError } from "./api.js";

const MAX_WAIT_S = 600; // for a model to be loaded
const TICK_MS = 500;

export class Generation {
  /**
   * @param {object} node the assistant's message, filled while it comes
   * @param {() => void} changed is called after every change
   * @param {() => void} ticked is called every half second: times have changed
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

  /** Runs to the end. Never throws: a failure becomes `node.error`. */
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

  /** Since it was asked for. */
  get elapsedMs() {
    return performance.now() - this.begun;
  }

  /** Tokens a second so far, or null while there is nothing to count. */
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
        // A model that is being loaded, or a full queue, is worth waiting for.
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

  /** What is known of an answer that has no timings. */
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
