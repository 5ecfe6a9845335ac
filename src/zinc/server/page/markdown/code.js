// A growing code block: one element per line, which is coloured when it is complete.

import { make } from "../dom.js";
import { highlightLine } from "./highlight.js";
import { languageOf } from "./languages.js";

const MAX_COLOURED_LINES = 5000;

export class CodeView {
  constructor(language) {
    this.language = languageOf(language);
    this.element = make("code");
    this.reset();
  }

  reset() {
    this.element.replaceChildren();
    this.text = null; // nothing is shown yet, not even an empty line
    this.lastStart = 0; // where the last line begins in the text
    this.openBefore = null; // what it begins inside of
    this.complete = 0; // lines before it
  }

  update(text) {
    if (text === this.text) return;
    if (this.text !== null && !text.startsWith(this.text)) this.reset();
    this.element.lastChild?.remove();
    let start = this.lastStart;
    for (;;) {
      const end = text.indexOf("\n", start);
      const line = text.slice(start, end < 0 ? text.length : end);
      const open = this.add(line, end >= 0);
      if (end < 0) break;
      this.openBefore = open;
      start = end + 1;
      this.complete += 1;
    }
    this.text = text;
    this.lastStart = start;
  }

  add(line, complete) {
    const language = this.complete < MAX_COLOURED_LINES ? this.language : undefined;
    const [pieces, open] = highlightLine(language, line, this.openBefore);
    const element = make("span", { class: "line" });
    for (const [kind, text] of pieces) {
      element.append(kind ? make("span", { class: `hl-${kind}` }, text) : text);
    }
    if (complete) element.append("\n");
    this.element.append(element);
    return open;
  }
}
