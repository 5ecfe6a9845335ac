// The input field for messages, and the button that sends a message or stops the answer.

import { icon } from "../dom.js";
import { fit, isSendKey, isTouch } from "./field.js";

export class Composer {
  /** @param {object} actions send(text) -> whether it was sent, stop(), editLast() */
  constructor(actions) {
    this.actions = actions;
    this.area = document.getElementById("prompt");
    this.sendButton = document.getElementById("send");
    this.stopButton = document.getElementById("stop");
    this.sendButton.append(icon("send"));
    this.stopButton.append(icon("stop"));
    this.isBusy = false;
    document.getElementById("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.stopButton.addEventListener("click", () => actions.stop());
    this.area.addEventListener("input", () => this.changed());
    this.area.addEventListener("keydown", (event) => this.pressed(event));
    this.changed();
  }

  /** Sets whether an answer is running; the button then stops it. */
  setBusy(isBusy) {
    if (isBusy === this.isBusy) return;
    const hadFocus = [this.sendButton, this.stopButton].includes(document.activeElement);
    this.isBusy = isBusy;
    this.sendButton.hidden = isBusy;
    this.stopButton.hidden = !isBusy;
    if (hadFocus) this.takeFocus();
  }

  /** Takes the focus that another part of the page has lost. */
  takeFocus() {
    if (this.isBusy) this.stopButton.focus();
    else if (!isTouch()) this.area.focus(); // a keyboard would cover half of a phone
  }

  focus() {
    this.area.focus();
  }

  send() {
    const text = this.area.value;
    if (this.isBusy || !text.trim() || !this.actions.send(text.trim())) return;
    this.area.value = "";
    this.changed();
  }

  changed() {
    fit(this.area);
    this.sendButton.disabled = !this.area.value.trim();
  }

  pressed(event) {
    if (isSendKey(event)) {
      event.preventDefault();
      this.send();
    } else if (event.key === "ArrowUp" && !this.area.value && !this.isBusy) {
      event.preventDefault();
      this.actions.editLast();
    }
  }
}
