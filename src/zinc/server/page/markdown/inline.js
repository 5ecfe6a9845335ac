// A parser of inline Markdown: text -> a list of plain objects, never markup.
//
// Emphasis follows CommonMark's delimiter runs. The time is linear, or nearly so, for every text.
// URLs are only kept if their scheme is http, https or mailto.
//
// Nodes: text {text} · break · code {text} · emphasis, strong, deleted {children}
//        link {href, title, children} · image {href, text} · math {text, display}

const PLAIN = /[^\\`*_~[\]!<&$\n]+/y;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const SPACE = /\s/u;
const WITHOUT_SPACES = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}]/u;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const AUTOLINK = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/iy;
const EMAIL = /<([\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8})>/y;
const LINE_BREAK = /<br *\/?>/iy;
// A URL also ends at Chinese and Japanese punctuation, which has no space before it.
const BARE_LINK = /(?:https?:\/\/|www\.)[^\s<>[\]`|\\\u3001-\u3011\uff01-\uff1f]{2,2000}/iy;
const LINK_START = /https?:\/\/|www\./gi;
const ENTITY = /&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|([A-Za-z]{2,8}));/y;
const ENTITIES = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®",
  deg: "°", hellip: "…", mdash: "—", ndash: "–", times: "×", rarr: "→", larr: "←", middot: "·",
};
// Formulas. Single dollars delimit a formula only if there is no space inside them, no digit after
// them, and no two words in a row; otherwise they are prices.
const MATH = {
  "$$": /\$\$((?:[^$\\]|\\[^]){1,4000})\$\$/y,
  $: /\$(?![\s$])((?:[^$\\]|\\[^]){1,1000})\$(?!\d)/y,
  "\\(": /\\\(((?:[^\\]|\\[^)]){1,4000})\\\)/y,
  "\\[": /\\\[((?:[^\\]|\\[^\]]){1,4000})\\\]/y,
};
const COMMAND = /\\[A-Za-z]+(?:\{[^{}]*\})?/g;
const PROSE = /(?:[A-Za-z]{2,}|\d)[.,;:]? +[A-Za-z]{2,}/;
const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const MAX_DESTINATION = 4000;
const MAX_PARENTHESES = 32;
const MAX_DEPTH = 40;

/** Returns the nodes of a text. */
export function parseInline(text) {
  return new InlineParser(text).parse();
}

/** Returns the URL if its scheme is allowed, else null. */
export function safeAddress(address) {
  try {
    const url = new URL(address);
    return SCHEMES.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

class InlineParser {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.nodes = [];
    this.runs = []; // delimiter runs that may open or close emphasis, in order
    this.brackets = [];
    this.ticks = null;
    this.ends = null;
    this.plainEnd = 0;
    this.nextLink = -1;
  }

  parse() {
    while (this.at < this.text.length) this.step();
    this.emphasise(0);
    return tidy(this.nodes);
  }

  step() {
    const { text, at } = this;
    switch (text[at]) {
      case "\\": return this.escape();
      case "`": return this.code();
      case "*":
      case "_":
      case "~": return this.run();
      case "[": return this.open("[");
      case "!": return text[at + 1] === "[" ? this.open("![") : this.take(1);
      case "]": return this.close();
      case "<": return this.angle();
      case "&": return this.entity();
      case "$": return this.dollar();
      case "\n": return this.lineBreak();
      default: return this.plain();
    }
  }

  push(node) {
    this.nodes.push(node);
  }

  take(length) {
    this.push({ type: "text", text: this.text.slice(this.at, this.at + length) });
    this.at += length;
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    return pattern.exec(this.text);
  }

  plain() {
    const { at } = this;
    // Both are searched once and kept, because a text may contain thousands of colons and "www".
    if (this.plainEnd <= at) this.plainEnd = at + this.match(PLAIN)[0].length;
    if (this.nextLink < at) this.nextLink = this.match(LINK_START)?.index ?? Infinity;
    const stop = Math.min(this.plainEnd, this.nextLink);
    if (stop > at) this.take(stop - at);
    else if (/\w/.test(this.text[at - 1] ?? "") || !this.bareLink()) this.take(4);
  }

  dollar() {
    const mark = this.text[this.at + 1] === "$" ? "$$" : "$";
    if (!this.math(mark)) this.take(mark.length);
  }

  /** Parses a formula that starts with `mark`. Returns false if there is none. */
  math(mark) {
    const match = this.match(MATH[mark]);
    if (!match) return false;
    const lone = mark === "$";
    if (lone && (/\s$/.test(match[1]) || PROSE.test(match[1].replace(COMMAND, "")))) return false;
    this.push({ type: "math", text: match[1], display: !lone && mark !== "\\(" });
    this.at += match[0].length;
    return true;
  }

  escape() {
    const next = this.text[this.at + 1];
    if ((next === "(" || next === "[") && this.math(`\\${next}`)) return;
    if (next === "\n") {
      this.push({ type: "break" });
      this.at += 2;
    } else if (next !== undefined && ESCAPABLE.test(next)) {
      this.push({ type: "text", text: next });
      this.at += 2;
    } else {
      this.take(1);
    }
  }

  lineBreak() {
    const last = this.nodes.at(-1);
    if (last?.type === "text" && !last.run) last.text = last.text.trimEnd();
    this.push({ type: "break" });
    this.at += 1;
    while (this.text[this.at] === " ") this.at += 1;
  }

  entity() {
    const match = this.match(ENTITY);
    const [whole, decimal, hex, name] = match ?? [];
    let found = name === undefined ? undefined : ENTITIES[name];
    if (decimal || hex) {
      const point = decimal ? Number.parseInt(decimal, 10) : Number.parseInt(hex, 16);
      const valid = point > 0 && point <= 0x10ffff && (point < 0xd800 || point > 0xdfff);
      found = valid ? String.fromCodePoint(point) : "\ufffd";
    }
    if (found === undefined) return this.take(1);
    this.push({ type: "text", text: found });
    this.at += whole.length;
  }

  angle() {
    const broken = this.match(LINE_BREAK);
    if (broken) {
      this.push({ type: "break" });
      this.at += broken[0].length;
      return;
    }
    const email = this.match(EMAIL);
    const match = email ?? this.match(AUTOLINK);
    const href = match && safeAddress(email ? `mailto:${match[1]}` : match[1]);
    if (!href) return this.take(1);
    this.push({ type: "link", href, title: "", children: [{ type: "text", text: match[1] }] });
    this.at += match[0].length;
  }

  /** Parses a bare URL. Returns false if there is none. */
  bareLink() {
    const match = this.match(BARE_LINK);
    const address = match ? trimAddress(match[0]) : "";
    const href = safeAddress(/^www\./i.test(address) ? `https://${address}` : address);
    if (!href || address.length < 8) return false;
    this.push({ type: "link", href, title: "", children: [{ type: "text", text: address }] });
    this.at += address.length;
    return true;
  }

  // -- code spans ---------------------------------------------------------------------------------

  code() {
    const length = runLength(this.text, this.at);
    const end = this.closingTicks(this.at + length, length);
    if (end < 0) return this.take(length);
    let inner = this.text.slice(this.at + length, end).replace(/\n/g, " ");
    if (/^ .* $/.test(inner) && inner.trim()) inner = inner.slice(1, -1);
    this.push({ type: "code", text: inner });
    this.at = end + length;
  }

  /** Returns the position of the next run of exactly `length` backticks after `from`, or -1. */
  closingTicks(from, length) {
    if (!this.ticks) {
      this.ticks = new Map();
      for (const match of this.text.matchAll(/`+/g)) {
        const known = this.ticks.get(match[0].length) ?? [];
        known.push(match.index);
        this.ticks.set(match[0].length, known);
      }
      for (const known of this.ticks.values()) known.reverse();
    }
    const known = this.ticks.get(length) ?? [];
    while (known.length && known.at(-1) < from) known.pop();
    return known.at(-1) ?? -1;
  }

  // -- links --------------------------------------------------------------------------------------

  open(mark) {
    this.brackets.push({ node: this.nodes.length, run: this.runs.length, mark, active: true });
    this.take(mark.length);
  }

  close() {
    const bracket = this.brackets.pop();
    const target = bracket?.active ? this.target() : null;
    if (!target) return this.take(1);
    this.at = target.end;
    this.emphasise(bracket.run);
    const children = tidy(this.nodes.splice(bracket.node).slice(1));
    const href = safeAddress(target.href);
    if (bracket.mark === "![") {
      this.push({ type: "image", href, text: plainText(children) });
      return;
    }
    // A link cannot contain a link.
    for (let i = this.brackets.length - 1; i >= 0; i -= 1) {
      const outer = this.brackets[i];
      if (!outer.active) break; // nor are those around it
      if (outer.mark === "[") outer.active = false;
    }
    if (href) this.push({ type: "link", href, title: target.title, children: unlinked(children) });
    else for (const child of children) this.push(child);
  }

  /** Parses `(url "title")` after a bracket. */
  target() {
    const { text } = this;
    let at = this.at + 1;
    if (text[at] !== "(" || this.lastParenthesis() < at) return null;
    at = skipSpace(text, at + 1);
    const start = at;
    const limit = Math.min(text.length, at + MAX_DESTINATION);
    let href;
    if (text[at] === "<") {
      while (at < limit && text[at] !== ">" && text[at] !== "\n") at += 1;
      if (text[at] !== ">") return null;
      href = text.slice(start + 1, at);
      at += 1;
    } else {
      for (let depth = 0; at < limit && !/\s/.test(text[at]); at += 1) {
        if (text[at] === "\\" && at + 1 < limit) at += 1;
        else if (text[at] === "(" && ++depth > MAX_PARENTHESES) return null;
        else if (text[at] === ")" && depth-- === 0) break;
      }
      href = text.slice(start, at);
    }
    at = skipSpace(text, at);
    let title = "";
    const quote = text[at];
    if (quote === '"' || quote === "'") {
      const end = text.slice(at + 1, at + 1 + MAX_DESTINATION).indexOf(quote);
      if (end < 0) return null;
      title = text.slice(at + 1, at + 1 + end);
      at = skipSpace(text, at + end + 2);
    }
    if (text[at] !== ")") return null;
    href = href.replace(/\\([!-/:-@[-`{-~])/g, "$1").replaceAll("&amp;", "&");
    return { href, title, end: at + 1 };
  }

  lastParenthesis() {
    this.ends ??= this.text.lastIndexOf(")");
    return this.ends;
  }

  // -- emphasis -----------------------------------------------------------------------------------

  run() {
    const { text, at } = this;
    const mark = text[at];
    const length = runLength(text, at);
    const before = characterBefore(text, at);
    const point = text.codePointAt(at + length);
    const after = point === undefined ? " " : String.fromCodePoint(point);
    const [left, right] = flanks(before, after);
    let [opens, closes] = [left, right];
    if (mark === "_") {
      opens = left && (!right || PUNCTUATION.test(before));
      closes = right && (!left || PUNCTUATION.test(after));
    } else if (mark === "~" && length > 2) {
      opens = closes = false;
    }
    const node = { type: "text", text: text.slice(at, at + length), run: true };
    if (opens || closes) {
      const index = this.nodes.length;
      this.runs.push({ node, index, mark, left: length, length, opens, closes });
    }
    this.push(node);
    this.at += length;
  }

  /** Matches opening and closing runs from index `first` on, and removes them. */
  emphasise(first) {
    const runs = this.runs.splice(first);
    if (!runs.length) return;
    const stack = [];
    const floor = new Map(); // below it no opener fits a closer of this kind
    const pairs = [];
    for (const closer of runs) {
      while (closer.closes && closer.left > 0) {
        const kind = `${closer.mark}${closer.opens}${closer.length % 3}`;
        let i = stack.length - 1;
        const bottom = Math.min(floor.get(kind) ?? 0, stack.length);
        while (i >= bottom && !fits(stack[i], closer)) i -= 1;
        if (i < bottom) {
          floor.set(kind, stack.length);
          break;
        }
        const opener = stack[i];
        stack.length = i + 1;
        for (const [key, value] of floor) if (value > i + 1) floor.set(key, i + 1);
        const used =
          closer.mark === "~" ? closer.left : opener.left >= 2 && closer.left >= 2 ? 2 : 1;
        opener.left -= used;
        closer.left -= used;
        pairs.push({ opener, closer, used, mark: closer.mark });
        if (opener.left === 0) stack.length = i;
      }
      if (closer.opens && closer.left > 0) stack.push(closer);
    }
    if (pairs.length) this.wrap(runs, pairs);
  }

  /** Rebuilds the nodes from the first run on, with matched pairs as nested nodes. */
  wrap(runs, pairs) {
    const opening = new Map();
    const closing = new Map();
    for (const pair of pairs) {
      // Inner pairs come before outer ones.
      listOf(opening, pair.opener.node).unshift(pair);
      listOf(closing, pair.closer.node).push(pair);
    }
    const byNode = new Map(runs.map((run) => [run.node, run]));
    const tail = this.nodes.splice(runs[0].index);
    const open = [this.nodes];
    for (const node of tail) {
      const run = byNode.get(node);
      if (!run) {
        open.at(-1).push(node);
        continue;
      }
      for (const pair of closing.get(node) ?? []) {
        const children = open.pop();
        if (children === open.at(-1)) continue;
        const type = pair.mark === "~" ? "deleted" : pair.used === 2 ? "strong" : "emphasis";
        open.at(-1).push({ type, children });
      }
      if (run.left) open.at(-1).push({ type: "text", text: run.mark.repeat(run.left), run: true });
      for (let n = opening.get(node)?.length ?? 0; n > 0; n -= 1) {
        open.push(open.length < MAX_DEPTH ? [] : open.at(-1));
      }
    }
  }
}

function fits(opener, closer) {
  if (opener.mark !== closer.mark || opener.left === 0) return false;
  if (opener.mark === "~") return opener.left === closer.left;
  // Rule of three: https://spec.commonmark.org/0.31.2/#can-open-emphasis
  const mixed = opener.closes || closer.opens;
  const sum = opener.length + closer.length;
  return !mixed || sum % 3 !== 0 || (opener.length % 3 === 0 && closer.length % 3 === 0);
}

/**
 * Returns whether a run is left-flanking and right-flanking. In scripts without spaces between
 * words, letters count like spaces.
 */
function flanks(before, after) {
  const [spaceBefore, spaceAfter] = [SPACE.test(before), SPACE.test(after)];
  const [markBefore, markAfter] = [PUNCTUATION.test(before), PUNCTUATION.test(after)];
  const edgeBefore = spaceBefore || markBefore || WITHOUT_SPACES.test(before);
  const edgeAfter = spaceAfter || markAfter || WITHOUT_SPACES.test(after);
  return [!spaceAfter && (!markAfter || edgeBefore), !spaceBefore && (!markBefore || edgeAfter)];
}

function characterBefore(text, at) {
  if (at === 0) return " ";
  const isPair = at > 1 && /[\udc00-\udfff]/.test(text[at - 1]);
  return text.slice(at - (isPair ? 2 : 1), at);
}

function listOf(map, key) {
  if (!map.has(key)) map.set(key, []);
  return map.get(key);
}

function runLength(text, at) {
  let end = at;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

function skipSpace(text, at) {
  let next = at;
  while (text[next] === " " || text[next] === "\n") next += 1;
  return next;
}

/** Returns a bare URL without the punctuation of the sentence around it. */
function trimAddress(address) {
  let end = address.length;
  let surplus = 0;
  for (const mark of address) surplus += mark === ")" ? 1 : mark === "(" ? -1 : 0;
  for (; end > 0; end -= 1) {
    const last = address[end - 1];
    if (last === ")" && surplus > 0) surplus -= 1;
    else if (!/[?!.,:;*_~'"\])]/.test(last) || last === ")") break;
  }
  return address.slice(0, end);
}

/** Returns the nodes with neighbouring texts joined. */
function tidy(nodes) {
  const joined = [];
  for (const node of nodes) {
    const last = joined.at(-1);
    if (node.type === "text" && last?.type === "text") last.text += node.text;
    else if (node.type === "text") joined.push({ type: "text", text: node.text });
    else joined.push(node.children ? { ...node, children: tidy(node.children) } : node);
  }
  return joined;
}

function unlinked(nodes) {
  return nodes.flatMap((node) => {
    if (node.type === "link") return unlinked(node.children);
    return node.children ? [{ ...node, children: unlinked(node.children) }] : [node];
  });
}

/** Returns the plain text of a list of nodes. */
export function plainText(nodes) {
  return nodes
    .map((node) => node.text ?? (node.children ? plainText(node.children) : " "))
    .join("");
}
