// The parts of the server's API that the page uses. URLs are relative, so the page also works
// behind a proxy that serves it under a path.

import { eventData } from "./events.js";

const POLL_TIMEOUT_MS = 10_000; // for answers that a server has at hand

/** A failed request, with a message for the user. `status` is 0 if the server was not reached. */
export class ApiError extends Error {
  constructor(status, message, code = null, retryAfterS = null) {
    super(message.charAt(0).toUpperCase() + message.slice(1)); // the API's errors are clauses
    this.status = status;
    this.code = code;
    this.retryAfterS = retryAfterS;
  }
}

export class Api {
  /** @param {() => string} key returns the API key, "" if there is none */
  constructor(key) {
    this.key = key;
  }

  /** Returns the rows of /v1/models. Throws ApiError. */
  async models() {
    return (await this.json("v1/models")).data ?? [];
  }

  /** Returns the default sampling parameters of a loaded model. Throws ApiError. */
  async defaults(model) {
    const found = await this.json(`props?model=${encodeURIComponent(model)}`);
    return found.default_generation_settings?.params ?? {};
  }

  /** Yields the chunks of a chat completion. Throws ApiError, or AbortError if `signal` aborts. */
  async *chat(body, signal) {
    const response = await this.fetch("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      signal,
    });
    for await (const data of this.events(response, signal)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) {
        const { status = 500, message = "The answer failed.", code } = chunk.error;
        throw new ApiError(status, message, code);
      }
      yield chunk;
    }
    throw new ApiError(0, "The connection to the server was lost.");
  }

  async *events(response, signal) {
    try {
      yield* eventData(response.body);
    } catch (error) {
      if (signal.aborted) throw error;
      throw new ApiError(0, "The connection to the server was lost.");
    }
  }

  async json(path) {
    const response = await this.fetch(path, { signal: AbortSignal.timeout(POLL_TIMEOUT_MS) });
    try {
      return await response.json();
    } catch {
      throw new ApiError(0, "The connection to the server was lost.");
    }
  }

  async fetch(path, options = {}) {
    const headers = { ...options.headers };
    const key = this.key();
    if (key) headers.Authorization = `Bearer ${key}`;
    let response;
    try {
      response = await fetch(path, { ...options, headers, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The server cannot be reached.");
    }
    if (!response.ok) throw await failure(response);
    return response;
  }
}

async function failure(response) {
  const retry = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // The response comes from something else, such as a proxy.
  }
  const message = error.message ?? `The server answered ${response.status}.`;
  return new ApiError(response.status, message, error.code, Number.isNaN(retry) ? null : retry);
}
