// A message of the thread with its actions: a question, an answer with reasoning and calls, or
// results of calls.

import { copyButton, iconButton, make } from "../dom.js";
import * as format from "../format.js";
import { CodeView } from "../markdown/code.js";
import { MarkdownView } from "../markdown/view.js";
import { fit, isSendKey } from "./field.js";
import { say } from "./notices.js";

const NAMES = { user: "You", assistant: "Assistant", tool: "Results of calls" };

/** The view of a message. Its context is {generation, ids, isLast, isBusy}. */
export class MessageView {
  /** @param {object} actions see `Thread` */
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.speaks = false;
    this.heading = make("h2", { class: "offscreen" }, NAMES[node.role]);
    this.body = make("div", { class: "body" });
    this.foot = make("div", { class: "foot" });
    this.element = make(
      "article",
      { class: `message ${node.role}`, "data-id": node.id },
      this.heading,
      this.body,
      this.foot,
    );
    if (node.role === "user") this.body.append(plainText(node.content));
    else if (node.role === "tool") this.body.append(...node.results.map(resultElement));
    else this.prepareAnswer();
  }

  prepareAnswer() {
    this.thoughtText = make("div", { class: "thought" });
    this.thoughtLabel = make("span");
    this.thoughts = make(
      "details",
      { class: "reasoning", hidden: true },
      make("summary", {}, this.thoughtLabel),
      this.thoughtText,
    );
    this.text = make("div", { class: "markdown" });
    this.markdown = new MarkdownView(this.text, (block) => {
      if (this.speaks) say(block);
    });
    this.thoughtMarkdown = new MarkdownView(this.thoughtText);
    // Reasoning is only drawn while it is unfolded.
    this.thoughts.addEventListener("toggle", () => this.drawThoughts());
    this.calls = make("div", { class: "calls" });
    this.callViews = [];
    this.note = make("div", { class: "note" });
    this.body.append(this.thoughts, this.text, this.calls, this.note);
  }

  /** Draws the changed parts. */
  update(around) {
    if (this.isEditing) return;
    const { generation } = around;
    if (this.node.role === "assistant") {
      const begins = Boolean(generation) && !this.speaks;
      this.speaks = Boolean(generation) || this.speaks;
      if (begins) say("The answer begins.");
      this.thoughtState(generation);
      this.drawThoughts();
      this.markdown.update(this.node.content);
      if (!generation && this.speaks) {
        this.markdown.finish();
        this.speaks = false;
        say(this.node.error ? "The answer failed." : "The answer is complete.");
      }
      this.drawCalls(around);
      this.drawNote(around);
    }
    this.element.classList.toggle("running", Boolean(generation));
    this.drawFoot(around);
  }

  thoughtState(generation) {
    const { node } = this;
    this.thoughts.hidden = !node.reasoning.trim();
    if (this.thoughts.hidden) return;
    const ms = generation?.reasoningMs ?? node.reasoningMs;
    let text = ms >= 50 ? `Thought for ${format.duration(ms)}` : "Thoughts";
    if (generation?.isReasoning) text = `Thinking… ${format.seconds(ms)}`;
    if (this.thoughtLabel.textContent !== text) this.thoughtLabel.textContent = text;
    this.thoughts.classList.toggle("active", Boolean(generation?.isReasoning));
  }

  drawThoughts() {
    if (this.thoughts.open) this.thoughtMarkdown.update(this.node.reasoning.trim());
  }

  // -- calls --------------------------------------------------------------------------------------

  drawCalls({ generation, isLast, isBusy }) {
    this.node.calls.forEach((call, i) => {
      const view = (this.callViews[i] ??= this.newCall());
      view.name.textContent = call.name || "…";
      view.code.update(generation ? call.arguments : pretty(call.arguments));
    });
    const wanted = this.node.calls.length > 0 && isLast && !isBusy && !this.node.error;
    if (wanted && !this.results) this.showResultForm();
    else if (!wanted && this.results) {
      this.results.remove();
      this.results = null;
    }
  }

  newCall() {
    const name = make("code");
    const code = new CodeView("json");
    const element = make(
      "div",
      { class: "call" },
      make("p", { class: "call-name" }, "Calls ", name),
      make("pre", { tabindex: "0", role: "region", "aria-label": "Arguments" }, code.element),
    );
    this.calls.append(element);
    return { name, code, element };
  }

  /** Shows fields for the results of calls: the page runs no tools, the user does. */
  showResultForm() {
    const fields = this.node.calls.map((call) => {
      const area = make("textarea", { rows: "2", placeholder: "Result", required: true });
      return { call, area, label: make("label", {}, `Result of ${call.name}`, area) };
    });
    const submit = (event) => {
      event.preventDefault();
      const results = fields.map(({ call, area }) => {
        return { id: call.id, name: call.name, content: area.value };
      });
      this.actions.answerCalls(this.node, results);
    };
    this.results = make(
      "form",
      { class: "results", onsubmit: submit },
      ...fields.map(({ label }) => label),
      make("button", { type: "submit" }, "Send results"),
    );
    this.body.append(this.results);
  }

  // -- state --------------------------------------------------------------------------------------

  drawNote({ generation, isLast, isBusy }) {
    const { node } = this;
    const text = noteOf(node, generation);
    const isOpen = isLast && !isBusy; // for another answer
    const canContinue = isOpen && !node.calls.length && Boolean(node.content) && !node.error;
    const offers = canContinue && ["length", "stopped"].includes(node.finish);
    const retries = isOpen && Boolean(node.error);
    const state = `${text}|${offers}|${retries}|${Boolean(generation)}|${Boolean(node.error)}`;
    if (state === this.noteState) return;
    this.noteState = state;
    this.note.className = `note${generation ? " waiting" : ""}${node.error ? " error" : ""}`;
    this.note.replaceChildren(text);
    if (node.error) this.note.setAttribute("role", "alert");
    else this.note.removeAttribute("role");
    if (offers) {
      const onclick = () => this.actions.proceed(node);
      this.note.append(make("button", { type: "button", class: "link", onclick }, "Continue"));
    }
    if (retries) {
      const onclick = () => this.actions.regenerate(node);
      this.note.append(make("button", { type: "button", class: "link", onclick }, "Try again"));
    }
  }

  drawFoot({ generation, ids, isBusy }) {
    const { node, actions } = this;
    const stats = node.role === "assistant" ? statsOf(node, generation) : "";
    const state = `${ids.length}|${ids.indexOf(node.id)}|${isBusy}|${Boolean(generation)}`;
    if (state !== this.footState) {
      this.footState = state;
      this.stats = make("span", { class: "stats" });
      const parts = [];
      if (ids.length > 1) parts.push(this.versionSwitch(ids, isBusy));
      if (!generation && node.role !== "tool") {
        parts.push(copyButton("Copy message", () => node.content));
        const edit = iconButton("edit", "Edit", () => this.edit());
        const redo = iconButton("redo", "Answer again", () => actions.regenerate(node));
        edit.disabled = redo.disabled = isBusy;
        parts.push(edit);
        if (node.role === "assistant") parts.push(redo);
      }
      const focused = this.foot.contains(document.activeElement) && document.activeElement;
      this.foot.replaceChildren(...parts, this.stats);
      if (focused) this.focusButton(focused.ariaLabel);
    }
    if (this.stats.textContent !== stats) this.stats.textContent = stats;
  }

  versionSwitch(ids, isBusy) {
    const at = ids.indexOf(this.node.id);
    const button = (name, label, step) => {
      return iconButton(name, label, () => this.actions.choose(ids[at + step], label));
    };
    const before = button("branchLeft", "Earlier version", -1);
    const after = button("branchRight", "Later version", 1);
    before.disabled = isBusy || at === 0;
    after.disabled = isBusy || at === ids.length - 1;
    const label = `Version ${at + 1} of ${ids.length}`;
    const group = { class: "versions", role: "group", "aria-label": label };
    const shown = make("span", { "aria-hidden": "true" }, `${at + 1}/${ids.length}`);
    return make("span", group, before, shown, after);
  }

  /** Focuses the button below the message with this label, or another one if it is disabled. */
  focusButton(label) {
    const buttons = [...this.foot.querySelectorAll("button:not(:disabled)")];
    (buttons.find(({ ariaLabel }) => ariaLabel === label) ?? buttons[0])?.focus();
  }

  // -- editing ------------------------------------------------------------------------------------

  edit() {
    const { node, actions } = this;
    if (this.isEditing) {
      this.element.querySelector("form.edit textarea").focus();
      return;
    }
    this.isEditing = true;
    const area = make("textarea", { "aria-label": "Edit the message", dir: "auto" });
    area.value = node.content;
    const end = () => {
      this.isEditing = false;
      form.remove();
      this.body.hidden = this.foot.hidden = false;
      this.foot.querySelector('[aria-label="Edit"]')?.focus();
    };
    const submit = (event) => {
      event.preventDefault();
      if (!area.value.trim()) return;
      if (area.value === node.content || actions.edit(node, area.value)) end();
    };
    const form = make(
      "form",
      { class: "edit", onsubmit: submit },
      area,
      make(
        "div",
        {},
        make("button", { type: "button", onclick: end }, "Cancel"),
        make("button", { type: "submit" }, node.role === "user" ? "Send" : "Save as new version"),
      ),
    );
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        end();
      } else if (node.role === "user" && isSendKey(event)) {
        submit(event);
      }
    });
    area.addEventListener("input", () => fit(area));
    this.body.hidden = this.foot.hidden = true;
    this.element.append(form);
    fit(area);
    area.focus();
  }
}

/** Creates the text of a user's message, without Markdown. */
function plainText(text) {
  return make("div", { class: "plain", dir: "auto" }, text);
}

function resultElement({ name, content }) {
  return make(
    "details",
    { class: "result" },
    make("summary", {}, "Result of ", make("code", {}, name)),
    make("pre", { tabindex: "0" }, content),
  );
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

function noteOf(node, generation) {
  if (generation) {
    if (generation.chunks) return "";
    const doing = generation.waiting || "Reading the prompt";
    return `${doing}… ${format.seconds(generation.elapsedMs)}`;
  }
  if (node.error) return node.error.message;
  if (node.finish === "length") return "The answer reached its token limit.";
  if (node.finish === "context") return "The context is full; a new chat has room again.";
  if (node.finish === "stopped") return "Stopped.";
  return node.content || node.calls.length ? "" : "The answer is empty.";
}

function statsOf(node, generation) {
  if (generation) {
    return generation.rate === null ? "" : `about ${format.rate(generation.rate)}`;
  }
  const { stats } = node;
  if (!stats) return "";
  const about = stats.estimated ? "about " : "";
  const parts = [];
  if (stats.rate) parts.push(about + format.rate(stats.rate));
  if (stats.tokens) parts.push(about + format.count(stats.tokens, "token"));
  if (stats.acceptedTokens) parts.push(`${format.integer(stats.acceptedTokens)} from drafts`);
  if (stats.firstMs) parts.push(`first after ${format.duration(stats.firstMs)}`);
  if (stats.cachedTokens) parts.push(`${format.integer(stats.cachedTokens)} cached`);
  if (node.model) parts.push(node.model);
  return parts.join(" · ");
}
