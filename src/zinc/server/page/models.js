// What the page knows of the server's models: asked for often while one is being loaded, and rarely
// otherwise.

const WATCH_MS = 700;
const REST_MS = 20_000;

export class Models {
  /**
   * @param {object} api see api.js
   * @param {(error: Error | null) => void} changed is called after every look, with its failure
   */
  constructor(api, changed) {
    this.api = api;
    this.changed = changed;
    this.rows = [];
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
    const busy = this.rows.some(({ state }) => state === "loading");
    const unsettled = this.watched && this.rows.some(({ state }) => state && state !== "loaded");
    const soon = busy || unsettled || error?.status === 0;
    this.timer = setTimeout(() => this.look(), soon ? WATCH_MS : REST_MS);
    this.changed(error);
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
