// The dialog that asks for the server's API key.

import { make } from "../dom.js";

export class KeyDialog {
  /** @param {(key: string, keep: boolean) => void} given is called with the entered key */
  constructor(given) {
    this.given = given;
    this.dialog = document.getElementById("key");
    this.input = make("input", {
      type: "password", autocomplete: "current-password", spellcheck: "false",
    });
    this.keep = make("input", { type: "checkbox" });
    this.problem = make("p", { class: "field-error", role: "alert" });
    const submit = (event) => {
      event.preventDefault();
      this.dialog.close();
      this.given(this.input.value.trim(), this.keep.checked);
    };
    this.dialog.append(
      make(
        "form",
        { onsubmit: submit },
        make("h2", { id: "key-title" }, "API key"),
        make("p", {}, "The server requires an API key (zinc serve --api-key)."),
        this.problem,
        make("label", {}, make("span", { class: "label" }, "Key"), this.input),
        make("label", { class: "check" }, this.keep, "Keep it in this browser"),
        make(
          "div",
          { class: "buttons" },
          make("button", { type: "button", onclick: () => this.dialog.close() }, "Cancel"),
          make("button", { type: "submit", class: "primary" }, "Use"),
        ),
      ),
    );
  }

  open(key, keep, problem = "") {
    if (this.dialog.open) return;
    this.input.value = key;
    this.keep.checked = keep;
    this.problem.textContent = problem;
    this.dialog.showModal();
    this.input.select();
  }
}
