// The state of the server's models. It is polled every few seconds while the page is visible, to
// notice a server that stopped, and more often while a model is loading.

const WATCH_MS = 700;
const REST_MS = 5_000;

export class Models {
  /**
   * @param {object} api see api.js
   * @param {(error: Error | null) => void} changed is called after every poll, with its error
   */
  constructor(api, changed) {
    this.api = api;
    this.changed = changed;
    this.rows = [];
    this.error = null; // of the last look
    this.known = new Map(); // default sampling parameters by model
    this.watched = false;
    this.timer = 0;
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.look();
    });
  }

  row(name) {
    return this.rows.find(({ id }) => id === name);
  }

  /** Returns `name` if there is such a model, else the server's first model, or null. */
  choice(name) {
    return this.row(name)?.id ?? this.rows[0]?.id ?? null;
  }

  contextOf(name) {
    return this.row(name)?.meta?.n_ctx ?? null;
  }

  /** Returns whether an answer ends where the context of its model does. */
  isFull({ model, stats }) {
    const context = this.contextOf(model);
    return context !== null && (stats?.contextTokens ?? 0) >= context;
  }

  /** Notes whether an answer is running, because that may load a model. */
  watch(watched) {
    if (watched === this.watched) return;
    this.watched = watched;
    this.look();
  }

  /** Notes that a model answers, so it is loaded even if the last poll said otherwise. */
  answers(name) {
    const row = this.row(name);
    if (!row || row.state === "loaded") return;
    row.state = "loaded";
    this.changed(this.error);
    this.look();
  }

  /** Notes that a request failed. If the server cannot be reached, no model is ready. */
  failed(error) {
    if (error.status === 0) this.look();
  }

  /** Polls the server, and schedules the next poll. */
  async look() {
    clearTimeout(this.timer);
    const turn = (this.turn = (this.turn ?? 0) + 1);
    let error = null;
    try {
      // Encoders and rerankers do not chat. What a model is for is known once it is loaded.
      const rows = await this.api.models();
      this.rows = rows.filter(({ meta }) => (meta?.kind ?? "generator") === "generator");
    } catch (problem) {
      error = problem;
    }
    if (turn !== this.turn) return; // a later look is on its way
    this.error = error;
    const busy = this.rows.some(({ state }) => state === "loading");
    const unsettled = this.watched && this.rows.some(({ state }) => state && state !== "loaded");
    const soon = busy || unsettled || error?.status === 0;
    // The server wants an API key: the page asks the user for it and then polls again.
    if (error?.status !== 401) {
      this.timer = setTimeout(() => this.rested(), soon ? WATCH_MS : REST_MS);
    }
    this.changed(error);
  }

  /** Schedules a poll, unless the page is hidden; when it becomes visible, it polls at once. */
  rested() {
    if (!document.hidden || this.watched) this.look();
  }

  /** Returns the default sampling parameters of a model; {} while it is not loaded. */
  async defaults(name) {
    if (!this.known.has(name) && (this.row(name)?.state ?? "loaded") === "loaded") {
      try {
        this.known.set(name, await this.api.defaults(name));
      } catch {
        return {}; // they only tell what an empty field means
      }
    }
    return this.known.get(name) ?? {};
  }
}
