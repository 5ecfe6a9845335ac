// The line below the input field: how much of the model's context the conversation uses.

import { make } from "../dom.js";
import { integer, percent } from "../format.js";

export class UsageLine {
  constructor() {
    this.bar = make("span", { class: "bar" });
    const label = "Used context";
    this.meter = make(
      "span",
      { class: "meter", role: "meter", "aria-label": label, "aria-valuemin": "0" },
      this.bar,
    );
    this.text = make("span");
    this.root = document.getElementById("usage");
    this.hint = make("span", { class: "keys" }, "Enter sends, Shift+Enter starts a new line");
    this.root.append(this.hint, make("span", { class: "context" }, this.text, this.meter));
  }

  /** Shows `used` of `context` tokens; null means unknown. */
  show(used, context) {
    this.meter.parentElement.hidden = used === null;
    if (used === null) return;
    const share = context ? Math.min(used / context, 1) : 0;
    this.meter.hidden = !context;
    this.meter.setAttribute("aria-valuenow", String(used));
    this.meter.setAttribute("aria-valuemax", String(context ?? used));
    this.meter.setAttribute("aria-valuetext", `${integer(used)} tokens, ${percent(share)}`);
    this.bar.style.width = `${share * 100}%`;
    this.bar.classList.toggle("full", share > 0.85);
    const whole = context ? ` of ${integer(context)}` : "";
    this.text.textContent = `${integer(used)}${whole} tokens`;
  }
}
