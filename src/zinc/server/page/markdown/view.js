// A view of a growing Markdown text. Each update parses the text from its last decided block and
// changes only elements that differ. A long answer is therefore as fast as a short one, and a
// selection, a scrolled table or a focused button is kept.

import { copyButton, make } from "../dom.js";
import { parseBlocks, splitLines } from "./blocks.js";
import { CodeView } from "./code.js";
import { parseInline } from "./inline.js";
import { parseTex } from "./tex.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";

export class MarkdownView {
  /**
   * @param {HTMLElement} root takes the elements
   * @param {(text: string) => void} onBlock is called with the text of each complete block
   */
  constructor(root, onBlock = () => {}) {
    this.root = root;
    this.onBlock = onBlock;
    this.reset();
  }

  reset() {
    this.root.replaceChildren();
    this.text = "";
    this.certain = 0; // characters of the text that no further text can change the blocks of
    this.views = []; // of the blocks after them
  }

  /** Shows `text`; fast if it starts with the text shown before. */
  update(text) {
    if (text === this.text) return;
    if (!text.startsWith(this.text)) this.reset();
    this.text = text;
    const tail = text.slice(this.certain);
    const lines = splitLines(tail);
    const blocks = parseBlocks(lines);
    patch(this.root, this.views, blocks);
    this.settle(tail, lines.length, blocks);
  }

  /** Ends the text: calls `onBlock` for the remaining blocks. */
  finish() {
    for (const view of this.views) this.onBlock(view.element.textContent);
    this.certain = this.text.length;
    this.views = [];
  }

  /** Marks blocks as finished: those before the last block that starts with a complete line. */
  settle(tail, lineCount, blocks) {
    let last = blocks.length - 1;
    while (last > 0 && blocks[last].decided >= lineCount - 1) last -= 1;
    if (last <= 0) return;
    this.certain += lineOffset(tail, blocks[last].start);
    for (const view of this.views.splice(0, last)) this.onBlock(view.element.textContent);
  }
}

function lineOffset(text, line) {
  let at = 0;
  for (let n = 0; n < line; n += 1) at = text.indexOf("\n", at) + 1;
  return at;
}

/** Updates `views`, whose elements are the last ones in `parent`, to show `blocks`. */
function patch(parent, views, blocks) {
  blocks.forEach((block, i) => {
    const view = views[i];
    if (view?.update(block)) return;
    const made = createView(block);
    if (view) view.element.replaceWith(made.element);
    else parent.append(made.element);
    views[i] = made;
  });
  for (const view of views.splice(blocks.length)) view.element.remove();
}

function createView(block) {
  switch (block.type) {
    case "code": return new CodeBlockView(block);
    case "list": return new ListView(block);
    case "quote": return new QuoteView(block);
    case "table": return new TableView(block);
    case "math": return new MathView(block);
    case "rule": return { element: make("hr"), update: (next) => next.type === "rule" };
    default: return new TextView(block);
  }
}

class TextView {
  constructor(block) {
    this.tag = tagOf(block);
    this.element = make(this.tag, { dir: "auto" });
    this.update(block);
  }

  update(block) {
    if (tagOf(block) !== this.tag) return false;
    if (block.text !== this.text) {
      this.text = block.text;
      fillInline(this.element, block.text);
    }
    return true;
  }
}

/** Returns the heading level in the page, below the page's own headings. */
function tagOf(block) {
  if (block.type === "paragraph") return "p";
  return block.type === "heading" ? `h${Math.min(block.level + 2, 6)}` : "";
}

class QuoteView {
  constructor(block) {
    this.element = make("blockquote");
    this.views = [];
    this.update(block);
  }

  update(block) {
    if (block.type !== "quote") return false;
    patch(this.element, this.views, block.children);
    return true;
  }
}

class ListView {
  constructor(block) {
    this.number = block.number;
    this.element = make(block.number === null ? "ul" : "ol");
    if (block.number !== null && block.number !== 1) this.element.start = block.number;
    this.items = [];
    this.update(block);
  }

  update(block) {
    if (block.type !== "list" || block.number !== this.number) return false;
    this.element.classList.toggle("loose", block.loose);
    block.items.forEach((item, i) => {
      let view = this.items[i];
      if (!view || view.task !== item.task) {
        const made = newItem(item.task);
        if (view) view.element.replaceWith(made.element);
        else this.element.append(made.element);
        view = this.items[i] = made;
      }
      patch(view.body, view.views, item.children);
    });
    for (const view of this.items.splice(block.items.length)) view.element.remove();
    return true;
  }
}

function newItem(task) {
  const element = make("li", { dir: "auto", class: task === null ? null : "task" });
  if (task === null) return { element, body: element, views: [], task };
  const label = task ? "done" : "to do";
  const box = make("input", { type: "checkbox", disabled: true, "aria-label": label });
  box.checked = task;
  const body = make("div");
  element.append(box, body);
  return { element, body, views: [], task };
}

class TableView {
  constructor(block) {
    this.head = make("thead");
    this.body = make("tbody");
    this.table = make("table", {}, this.head, this.body);
    // Wide tables scroll separately, so the keyboard must be able to focus them.
    this.element = make(
      "div",
      { class: "table", tabindex: "0", role: "region", "aria-label": "Table" },
      this.table,
    );
    this.rows = [];
    this.update(block);
  }

  update(block) {
    if (block.type !== "table") return false;
    const heading = `${block.align}\n${block.head.join("\n")}`;
    if (heading !== this.heading) {
      this.heading = heading;
      this.rows = [];
      this.body.replaceChildren();
      this.head.replaceChildren(newRow("th", block.head, block.align));
    }
    block.rows.forEach((cells, i) => {
      const text = cells.join("\n");
      if (this.rows[i]?.text === text) return;
      const element = newRow("td", cells, block.align);
      if (this.rows[i]) this.rows[i].element.replaceWith(element);
      else this.body.append(element);
      this.rows[i] = { text, element };
    });
    for (const row of this.rows.splice(block.rows.length)) row.element.remove();
    return true;
  }
}

function newRow(tag, cells, align) {
  const row = make("tr");
  cells.forEach((text, i) => {
    const scope = tag === "th" ? "col" : null;
    const cell = make(tag, { dir: "auto", scope, class: align[i] ? `to-${align[i]}` : null });
    fillInline(cell, text);
    row.append(cell);
  });
  return row;
}

class MathView {
  constructor(block) {
    this.element = make("div", { class: "formula" });
    this.update(block);
  }

  update(block) {
    if (block.type !== "math") return false;
    const source = block.text + block.after;
    if (source !== this.source) {
      this.source = source;
      this.element.replaceChildren(formula(block.text, true), block.after);
    }
    return true;
  }
}

class CodeBlockView {
  constructor(block) {
    this.language = block.language;
    this.code = new CodeView(block.language);
    const name = make("span", {}, block.language || "text");
    const copy = copyButton("Copy code", () => this.code.text);
    const label = block.language ? `Code, ${block.language}` : "Code";
    this.element = make(
      "div",
      { class: "code" },
      make("div", { class: "code-head" }, name, copy),
      make("pre", { tabindex: "0", role: "region", "aria-label": label }, this.code.element),
    );
    this.update(block);
  }

  update(block) {
    if (block.type !== "code" || block.language !== this.language) return false;
    this.code.update(block.text);
    return true;
  }
}

// -- inside a block -------------------------------------------------------------------------------

const INLINE_TAGS = { emphasis: "em", strong: "strong", deleted: "del" };

function fillInline(element, text) {
  element.replaceChildren(...parseInline(text).map(inlineElement));
}

function inlineElement(node) {
  switch (node.type) {
    case "text": return document.createTextNode(node.text);
    case "break": return make("br");
    case "code": return make("code", {}, node.text);
    case "link": return linkElement(node.href, node.title, node.children.map(inlineElement));
    case "image": return imageElement(node);
    case "math": return formula(node.text, node.display);
    default: return make(INLINE_TAGS[node.type], {}, ...node.children.map(inlineElement));
  }
}

/** Creates a formula, or its source text if it is not supported. */
function formula(text, display) {
  const nodes = parseTex(text);
  if (!nodes) return make("code", { class: display ? "tex block" : "tex" }, text.trim());
  const children = [{ tag: "mrow", children: nodes }];
  const attributes = { display: display ? "block" : "inline", alttext: text.trim() };
  return mathElement({ tag: "math", children, attributes });
}

function mathElement({ tag, text, children = [], attributes = {} }) {
  const element = document.createElementNS(MATHML, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...(text === undefined ? children.map(mathElement) : [text]));
  return element;
}

/** Creates a link that sends no referrer, and shows its target as a tooltip. */
function linkElement(href, title, children) {
  const tip = title ? `${title} — ${href}` : href;
  const properties = { href, title: tip, target: "_blank", rel: "noopener noreferrer nofollow" };
  return make("a", properties, ...children);
}

/** Creates a link instead of an image: loading a URL could leak the conversation. */
function imageElement({ href, text }) {
  const shown = `[image: ${text || "without a description"}]`;
  return href ? linkElement(href, "", [shown]) : document.createTextNode(shown);
}
