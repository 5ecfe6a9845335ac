// A small syntax highlighter. It works line by line, so that growing code costs one line at a time:
// a line and the construct open before it -> coloured pieces and the construct open after it.

const NUMBER = /(?:0[xX][\da-fA-F_]+|0[bB][01_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\w*/y;
const NAME = /[#\p{L}_$][\p{L}\p{N}_$]*/uy;
const SPACES = /\s+/y;
const TAG = /<\/?[A-Za-z!?][\w:.-]*|\/?>/y;
const ATTRIBUTE = /[A-Za-z_:@#*][\w:.-]*(?=\s*=)/y;
const MAX_LINE = 2000;

/**
 * Returns the coloured pieces of one line.
 *
 * Returns `[pieces, open]`: pieces are `[kind, text]`, kind "" or one of comment, string, word,
 * value, number, call, key, tag, added, removed; `open` is the construct that the next line is in.
 */
export function highlightLine(language, line, open = null) {
  if (!language || line.length > MAX_LINE) return [[["", line]], open];
  if (language.diff) return [[[diffKind(line), line]], null];
  return new LineScanner(language, line, open).scan();
}

function diffKind(line) {
  if (/^(?:\+\+\+|---|@@|diff |index )/.test(line)) return "word";
  return line[0] === "+" ? "added" : line[0] === "-" ? "removed" : "";
}

class LineScanner {
  constructor(language, line, open) {
    this.language = language;
    this.line = line;
    this.open = open;
    this.at = 0;
    this.pieces = [];
  }

  scan() {
    if (this.open && !this.open.tag) this.closeOpen();
    while (this.at < this.line.length) this.step();
    return [this.pieces, this.open];
  }

  push(kind, length) {
    const text = this.line.slice(this.at, this.at + length);
    const last = this.pieces.at(-1);
    if (last && last[0] === kind) last[1] += text;
    else this.pieces.push([kind, text]);
    this.at += length;
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    return pattern.exec(this.line)?.[0];
  }

  step() {
    const { language } = this;
    const space = this.match(SPACES);
    if (space) return this.push("", space.length);
    if (this.comment() || this.string()) return undefined;
    if (language.tags) return this.markup();
    const number = this.match(NUMBER);
    if (number) return this.push("number", number.length);
    const name = this.match(language.word ?? NAME);
    return name ? this.push(this.nameKind(name), name.length) : this.push("", 1);
  }

  nameKind(name) {
    const { language } = this;
    const rest = this.line.slice(this.at + name.length, this.at + name.length + 2);
    const known = language.folded ? name.toLowerCase() : name;
    if (language.key && /^\s?[:=]/.test(rest)) return "key";
    if (language.words.has(known)) return "word";
    if (language.values.has(known) || name[0] === "$") return "value";
    if (name[0] === "@") return "call";
    return rest[0] === "(" ? "call" : "";
  }

  comment() {
    const { language, line, at } = this;
    for (const mark of language.line ?? []) {
      // "#" within a word (a colour, a fragment) does not start a comment.
      if (line.startsWith(mark, at) && (mark !== "#" || at === 0 || /\s/.test(line[at - 1]))) {
        this.push("comment", line.length - at);
        return true;
      }
    }
    for (const [start, end] of language.block ?? []) {
      if (line.startsWith(start, at)) {
        this.push("comment", start.length);
        this.open = { kind: "comment", end, raw: true, lines: true };
        this.closeOpen();
        return true;
      }
    }
    return false;
  }

  string() {
    const { language, line, at } = this;
    if (language.tags && !this.open?.tag) return false;
    for (const [start, end, options] of language.strings ?? []) {
      if (!line.startsWith(start, at)) continue;
      // This quote is not a string but a lifetime of Rust.
      if (options === "1" && !/^'(?:\\.[^']*|[^\\'])'/.test(line.slice(at, at + 14))) continue;
      const outer = this.open;
      this.push("string", start.length);
      const [lines, raw] = [options.includes("m"), options.includes("r")];
      this.open = { kind: "string", end, raw, lines };
      this.closeOpen();
      if (this.open === null) this.open = outer;
      return true;
    }
    return false;
  }

  /** Reads the open construct to its end or to the end of the line. */
  closeOpen() {
    const { kind, end, raw, lines } = this.open;
    let to = this.at;
    while (to < this.line.length && !this.line.startsWith(end, to)) {
      to += !raw && this.line[to] === "\\" ? 2 : 1;
    }
    const closed = to < this.line.length;
    const isKey = kind === "string" && closed && this.language.key;
    const after = isKey ? this.line.slice(to + end.length, to + end.length + 2) : "";
    const from = this.at;
    this.push(kind, Math.min(to + (closed ? end.length : 0), this.line.length) - from);
    if (/^\s?:/.test(after)) this.pieces.at(-1)[0] = "key";
    if (closed || !lines) this.open = null;
  }

  markup() {
    const tag = this.match(TAG);
    if (tag) {
      this.push("tag", tag.length);
      this.open = tag.endsWith(">") ? null : { tag: true };
      return;
    }
    const attribute = this.open?.tag ? this.match(ATTRIBUTE) : null;
    this.push(attribute ? "key" : "", attribute ? attribute.length : 1);
  }
}
