// The model picker: the server's models, whether the chosen one is ready, and whether the server
// can be reached.

import { make } from "../dom.js";
import { percent } from "../format.js";

const STATES = {
  loaded: "ready",
  loading: "loading",
  unloaded: "not loaded",
  failed: "failed",
};

export class ModelPicker {
  /** @param {(name: string) => void} chosen is called when the user picks a model */
  constructor(chosen) {
    this.select = make("select", { "aria-label": "Model" });
    this.select.addEventListener("change", () => chosen(this.select.value));
    this.dot = make("span", { class: "dot", "aria-hidden": "true" });
    this.state = make("span", { class: "state", role: "status" });
    document.getElementById("models").append(this.dot, this.select, this.state);
  }

  /** Shows rows of /v1/models, with `name` chosen. `error`: why the last poll failed. */
  show(rows, name, error) {
    const options = rows.map((row) => {
      const more = row.state === "loaded" || !row.state ? "" : ` (${describe(row)})`;
      return make("option", { value: row.id }, row.id + more);
    });
    const drawn = options.map((option) => option.textContent).join("\n");
    if (drawn !== this.drawn) {
      this.drawn = drawn;
      this.select.replaceChildren(...options);
    }
    this.select.value = name ?? "";
    this.select.disabled = rows.length === 0;
    const row = rows.find((each) => each.id === name);
    const known = row?.state ?? (row ? "loaded" : "unloaded");
    const state = error ? (error.status === 0 ? "offline" : "unknown") : known;
    this.dot.dataset.state = state;
    const told = { loaded: "", offline: "not reachable", unknown: "" };
    const text = told[state] ?? (row ? describe(row) : "");
    if (this.state.textContent !== text) this.state.textContent = text;
    this.state.title = error?.message ?? row?.error ?? "";
  }
}

function describe(row) {
  const known = STATES[row.state] ?? row.state;
  return row.state === "loading" && row.progress ? `${known} ${percent(row.progress)}` : known;
}
