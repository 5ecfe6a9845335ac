// Notices (short messages with at most one action) and announcements for screen readers.

import { make } from "../dom.js";

const SHOWN_MS = 7000;
const MAX_SPOKEN = 12;

/** Shows a message for some seconds. `action`: the label of a button and its function. */
export function toast(text, action = null) {
  const root = document.getElementById("toasts");
  const element = make("div", { class: "toast" }, make("span", {}, text));
  const close = () => element.remove();
  if (action) {
    const [label, act] = action;
    const onclick = () => {
      close();
      act();
    };
    element.append(make("button", { type: "button", onclick }, label));
  }
  // A modal dialog makes everything outside of it inert.
  const dialog = document.querySelector("dialog[open]");
  (dialog?.querySelector(".toasts-inside") ?? root).append(element);
  setTimeout(close, SHOWN_MS);
}

/** Announces text to screen readers, after the current announcement. */
export function say(text) {
  const root = document.getElementById("announcer");
  if (!text.trim()) return;
  root.append(make("p", {}, text));
  while (root.childElementCount > MAX_SPOKEN) root.firstChild.remove();
}
