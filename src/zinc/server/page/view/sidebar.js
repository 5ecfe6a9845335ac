// The list of conversations: newest first, searchable, each with a menu of actions.

import { iconButton, make } from "../dom.js";
import { period } from "../format.js";
import { textsOf, titleOf } from "../tree.js";

const SNIPPET = 40; // characters before and after what was found

export class Sidebar {
  /** @param {object} actions open, rename, exportOne, remove: each takes a conversation */
  constructor(actions) {
    this.actions = actions;
    this.root = document.getElementById("conversations");
    this.search = document.getElementById("search");
    this.renaming = null;
    this.search.addEventListener("input", () => this.draw());
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.search.value) {
        this.search.value = "";
        this.draw();
        event.stopPropagation();
      } else if (event.key === "Enter" || event.key === "ArrowDown") {
        event.preventDefault();
        const first = this.root.querySelector(".open");
        if (event.key === "Enter") first?.click();
        else first?.focus();
      }
    });
    this.root.addEventListener("keydown", (event) => this.moveFocus(event));
  }

  /** Shows these conversations. `running`: the ids of those with a running answer. */
  show(conversations, current, running) {
    this.conversations = [...conversations].sort((a, b) => b.updated - a.updated);
    this.current = current;
    this.running = running;
    this.draw();
  }

  draw() {
    const query = this.search.value.trim().toLowerCase();
    const row = document.activeElement?.closest?.("li");
    const place = [...this.root.querySelectorAll("li")].indexOf(row);
    const parts = [];
    let group = null;
    let list = null;
    for (const conversation of this.conversations) {
      const found = query ? snippet(conversation, query) : "";
      if (found === null) continue;
      const heading = period(conversation.updated);
      if (heading !== group) {
        group = heading;
        list = make("ul");
        parts.push(make("h2", {}, heading), list);
      }
      list.append(this.row(conversation, found));
    }
    if (!list) {
      parts.push(make("p", { class: "hint" }, query ? "Nothing found." : "No conversations yet."));
    }
    this.root.replaceChildren(...parts);
    const rename = this.root.querySelector("input.rename");
    if (rename) {
      rename.focus();
      rename.select();
    } else if (place >= 0) {
      const left = [...this.root.querySelectorAll(".open")]; // without a removed conversation
      const same = this.root.querySelector(`li[data-id="${row.dataset.id}"] .open`);
      (same ?? left[Math.min(place, left.length - 1)] ?? this.search).focus();
    }
  }

  row(conversation, found) {
    const row = make("li", { "data-id": conversation.id });
    if (conversation.id === this.renaming) {
      row.append(this.renameField(conversation));
      return row;
    }
    const title = titleOf(conversation);
    const open = make(
      "button",
      {
        type: "button",
        class: "open",
        "aria-current": conversation.id === this.current ? "true" : null,
        onclick: () => this.actions.open(conversation),
      },
      make("span", { class: "name", dir: "auto" }, title),
    );
    if (this.running.has(conversation.id)) {
      open.append(make("span", { class: "pulse", role: "img", "aria-label": "being answered" }));
    }
    if (found) open.append(make("span", { class: "snippet", dir: "auto" }, found));
    const { exportOne, remove } = this.actions;
    const rename = () => {
      this.renaming = conversation.id;
      this.draw();
    };
    row.append(
      open,
      make(
        "span",
        { class: "row-actions" },
        iconButton("edit", `Rename ${title}`, rename),
        iconButton("export", `Export ${title}`, () => exportOne(conversation)),
        iconButton("remove", `Delete ${title}`, () => remove(conversation)),
      ),
    );
    return row;
  }

  renameField(conversation) {
    const input = make("input", { class: "rename", "aria-label": "Title", maxlength: "200" });
    input.value = titleOf(conversation);
    const end = (save) => {
      if (this.renaming !== conversation.id) return;
      this.renaming = null;
      if (save) this.actions.rename(conversation, input.value.trim());
      this.draw();
      this.root.querySelector(`li[data-id="${conversation.id}"] .open`)?.focus();
    };
    input.addEventListener("blur", () => end(true));
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      end(event.key === "Enter");
    });
    return input;
  }

  moveFocus(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !event.target.classList.contains("open")) return;
    event.preventDefault();
    const all = [...this.root.querySelectorAll(".open")];
    (all[all.indexOf(event.target) + step] ?? this.search).focus();
  }
}

/** Returns the text around `query` in a conversation, "" if it is in the title, or null. */
function snippet(conversation, query) {
  let isTitle = true;
  for (const text of textsOf(conversation)) {
    const at = text.toLowerCase().indexOf(query);
    if (at >= 0 && isTitle) return "";
    if (at >= 0) {
      const [from, to] = [Math.max(0, at - SNIPPET), at + query.length + SNIPPET];
      const cut = text.slice(from, to).replace(/\s+/g, " ");
      return `${from > 0 ? "…" : ""}${cut}${to < text.length ? "…" : ""}`;
    }
    isTitle = false;
  }
  return null;
}
