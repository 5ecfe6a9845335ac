// What the page knows of the server's models. It polls every few seconds while the page is visible,
// so that it notices a server that went away, and more often while a model is being loaded.

const WATCH_MS = 700;
const REST_MS = 5_000;

export class Models {
  /**
   * @param {object} api see api.js
   * @param {(error: Error | null) => void} changed is called after every look, with its failure
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

  /** The name, if there is such a model; else the server's first one; null without any. */
  choice(name) {
    return this.row(name)?.id ?? this.rows[0]?.id ?? null;
  }

  contextOf(name) {
    return this.row(name)?.meta?.n_ctx ?? null;
  }

  /** Whether an answer is on its way, which may have a model loaded. */
  watch(watched) {
    if (watched === this.watched) return;
    this.watched = watched;
    this.look();
  }

  /** Notes that a model answers: it is loaded, whatever the last look has seen. */
  answers(name) {
    const row = this.row(name);
    if (!row || row.state === "loaded") return;
    row.state = "loaded";
    this.changed(this.error);
    this.look();
  }

  /** Notes that a request failed: a server that cannot be reached has no model that is ready. */
  failed(error) {
    if (error.status === 0) this.look();
  }

  /** Asks the server, and again after a while. */
  async look() {
    clearTimeout(this.timer);
    const turn = (this.turn = (this.turn ?? 0) + 1);
    let error = null;
    try {
      this.rows = await this.api.models();
    } catch (problem) {
      error = problem;
    }
    if (turn !== this.turn) return; // a later look is on its way
    this.error = error;
    const busy = this.rows.some(({ state }) => state === "loading");
    const unsettled = this.watched && this.rows.some(({ state }) => state && state !== "loaded");
    const soon = busy || unsettled || error?.status === 0;
    // Without its key there is nothing to look at: the page asks for it, and then looks again.
    if (error?.status !== 401) {
      this.timer = setTimeout(() => this.rested(), soon ? WATCH_MS : REST_MS);
    }
    this.changed(error);
  }

  /** Looks again, unless nobody can see it: a page that becomes visible looks at once. */
  rested() {
    if (!document.hidden || this.watched) this.look();
  }

  /** Default sampling parameters of a model; {} while it is not loaded. */
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
