// A parser of Markdown blocks: lines of text -> a list of plain objects, never markup.
//
// It supports CommonMark with GitHub's tables and task lists, but no raw HTML and no link
// definitions. `decided` is the line from which on a block can no longer change, so that a growing
// text is only parsed again from its last decided block.
//
// Kinds: heading {level, text} · paragraph {text} · code {language, text} · rule · quote {children}
//        math {text, after: punctuation} ·
//        table {align, head, rows} · list {number (null: bullets), loose, items: [{task, children}]}

const MAX_DEPTH = 24;
const MAX_COLUMNS = 200;

const FENCE = /^( {0,3})(`{3,}|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const MARKER = /^( {0,3})([-+*]|\d{1,9}[.)])(?:( +)(.*)|$)/;
const MARKER_TABS = /^[ \t]*(?:[-+*]|\d{1,9}[.)])[ \t]+/;
const MATH = /^ {0,3}(\$\$|\\\[)(.*)$/;
const MATH_END = { "$$": /^(.*?)\$\$\s*([.,;:]?)\s*$/, "\\[": /^(.*?)\\\]\s*([.,;:]?)\s*$/ };
const TASK = /^\[([ xX])\] +(?=\S)/;

/**
 * Returns the blocks of `lines`, each with `start` and `end` (line numbers, end exclusive) and
 * `decided`.
 * @param {string[]} lines without their line ends
 */
export function parseBlocks(lines, depth = 0) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const block = parseBlock(lines, at, depth);
    block.start = at;
    block.decided ??= at;
    blocks.push(block);
    at = block.end;
  }
  return blocks;
}

/** Returns the lines of a text, without line ends. */
export function splitLines(text) {
  return text.split("\n").map((line) => (line.endsWith("\r") ? line.slice(0, -1) : line));
}

function parseBlock(lines, at, depth) {
  const nested = depth < MAX_DEPTH;
  return (
    parseFence(lines, at) ??
    parseMath(lines, at) ??
    parseHeading(lines, at) ??
    parseRule(lines, at) ??
    (nested ? parseQuote(lines, at, depth) : null) ??
    (nested ? parseList(lines, at, depth) : null) ??
    parseTable(lines, at) ??
    parseIndented(lines, at) ??
    parseParagraph(lines, at)
  );
}

// -- leaf blocks ----------------------------------------------------------------------------------

function parseFence(lines, at) {
  const opening = openingFence(lines[at]);
  if (!opening) return null;
  const { indent, mark, info } = opening;
  const body = [];
  let end = at + 1;
  while (end < lines.length && !closesFence(lines[end], mark)) {
    body.push(dedent(lines[end], indent));
    end += 1;
  }
  // A growing text can end within a line end or the closing fence, which is not shown then.
  if (end === lines.length && isPartOf(body.at(-1), mark)) body.pop();
  const language = info.split(/[\s{,:]/, 1)[0].toLowerCase();
  return { type: "code", language, text: body.join("\n"), end: Math.min(end + 1, lines.length) };
}

function openingFence(line) {
  const match = FENCE.exec(line);
  if (!match || (match[2][0] === "`" && match[3].includes("`"))) return null;
  return { indent: match[1].length, mark: match[2], info: match[3].trim() };
}

function closesFence(line, mark) {
  const text = line.trim();
  return (
    indentOf(line) < 4 &&
    text.length >= mark.length &&
    text[0] === mark[0] &&
    isRun(text, mark[0])
  );
}

function isPartOf(line, mark) {
  const text = line?.trim() ?? "x";
  return text.length < mark.length && isRun(text, mark[0]);
}

/** Parses a formula on separate lines. With a blank line in it, it is text. */
function parseMath(lines, at) {
  if (!startsMath(lines[at])) return null;
  const [, mark, first] = MATH.exec(lines[at]);
  const body = [];
  let end = at;
  for (; end < lines.length && !isBlank(lines[end]); end += 1) {
    const line = end === at ? first : lines[end];
    const closed = MATH_END[mark].exec(line);
    if (closed) {
      body.push(closed[1]);
      return { type: "math", text: body.join("\n"), after: closed[2], end: end + 1 };
    }
    body.push(line);
  }
  const text = lines.slice(at, end).map((line) => line.trimStart());
  return { type: "paragraph", text: text.join("\n").trimEnd(), end };
}

/** Returns whether a line starts a formula block, and is not text that starts with a formula. */
function startsMath(line) {
  const match = MATH.exec(line);
  if (!match) return false;
  const [, mark, rest] = match;
  return MATH_END[mark].test(rest) || !rest.includes(mark === "$$" ? "$$" : "\\]");
}

function parseHeading(lines, at) {
  const match = HEADING.exec(lines[at]);
  if (!match) return null;
  return { type: "heading", level: match[1].length, text: headingText(match[2]), end: at + 1 };
}

function headingText(text) {
  const trimmed = (text ?? "").trim();
  let end = trimmed.length;
  while (end > 0 && trimmed[end - 1] === "#") end -= 1;
  const closed = end === 0 || trimmed[end - 1] === " ";
  return closed ? trimmed.slice(0, end).trim() : trimmed;
}

function parseRule(lines, at) {
  return isRule(lines[at]) ? { type: "rule", end: at + 1 } : null;
}

function isRule(line) {
  if (indentOf(line) > 3) return false;
  const marks = line.replace(/[ \t]/g, "");
  return marks.length >= 3 && "-_*".includes(marks[0]) && isRun(marks, marks[0]);
}

function parseIndented(lines, at) {
  if (indentOf(lines[at]) < 4) return null;
  let end = at;
  let last = at;
  while (end < lines.length && (isBlank(lines[end]) || indentOf(lines[end]) >= 4)) {
    if (!isBlank(lines[end])) last = end;
    end += 1;
  }
  const text = lines.slice(at, last + 1).map((line) => dedent(line, 4));
  return { type: "code", language: "", text: text.join("\n"), end: last + 1 };
}

function parseParagraph(lines, at) {
  const text = [];
  let end = at;
  while (end < lines.length && !isBlank(lines[end])) {
    if (end > at) {
      const level = underline(lines[end]);
      if (level) return { type: "heading", level, text: text.join("\n").trim(), end: end + 1 };
      if (interrupts(lines, end)) break;
    }
    text.push(lines[end].trimStart());
    end += 1;
  }
  return { type: "paragraph", text: text.join("\n").trimEnd(), end };
}

/** Returns the level of an underlined heading. Needs three marks: "-" may still become a list. */
function underline(line) {
  const text = line.trim();
  if (indentOf(line) > 3 || text.length < 3) return 0;
  return isRun(text, "=") ? 1 : isRun(text, "-") ? 2 : 0;
}

/** Returns whether a line ends the paragraph before it. */
function interrupts(lines, at) {
  return startsBlock(lines[at]) || parseTable(lines, at, true) !== null;
}

function startsBlock(line) {
  if (openingFence(line) || HEADING.test(line) || isRule(line) || startsQuote(line)) return true;
  if (startsMath(line)) return true;
  const marker = MARKER.exec(line);
  return Boolean(marker && marker[4] && /^(?:[-+*]|1[.)])$/.test(marker[2]));
}

// -- tables ---------------------------------------------------------------------------------------

function parseTable(lines, at, probe = false) {
  if (at + 1 >= lines.length || !lines[at].includes("|") || indentOf(lines[at]) > 3) return null;
  const align = delimiters(lines[at + 1]);
  if (!align || align.length > MAX_COLUMNS) return null;
  const head = splitRow(lines[at]);
  if (head.length !== align.length) return null;
  if (probe) return {};
  const rows = [];
  let end = at + 2;
  const isRow = (line) => !isBlank(line) && !startsBlock(line) && !readMarker(line);
  while (end < lines.length && isRow(lines[end])) {
    rows.push(splitRow(lines[end]).slice(0, align.length));
    end += 1;
  }
  return { type: "table", align, head, rows, decided: at + 1, end };
}

function delimiters(line) {
  if (!line.includes("-") || /[^-|: \t]/.test(line)) return null;
  if (!line.includes("|") && !line.includes(":")) return null; // a lone "---" is a rule
  const align = [];
  for (const cell of splitRow(line)) {
    if (!/^:?-+:?$/.test(cell)) return null;
    const [left, right] = [cell.startsWith(":"), cell.endsWith(":")];
    align.push(left && right ? "center" : right ? "right" : left ? "left" : "");
  }
  return align;
}

function splitRow(line) {
  const text = line.trim();
  const cells = [];
  let cell = "";
  for (let i = text[0] === "|" ? 1 : 0; i < text.length; i += 1) {
    if (text[i] === "\\" && text[i + 1] === "|") {
      cell += "|";
      i += 1;
    } else if (text[i] === "|") {
      cells.push(cell.trim());
      cell = "";
      if (i === text.length - 1) return cells;
    } else {
      cell += text[i];
    }
  }
  cells.push(cell.trim());
  return cells;
}

// -- container blocks -----------------------------------------------------------------------------

function startsQuote(line) {
  return /^ {0,3}>/.test(line);
}

function parseQuote(lines, at, depth) {
  if (!startsQuote(lines[at])) return null;
  const inner = new Inner();
  let end = at;
  while (end < lines.length) {
    if (startsQuote(lines[end])) {
      inner.push(lines[end].replace(/^ {0,3}> ?/, ""));
    } else if (inner.takesLazily(lines, end)) {
      inner.pushLazily(lines[end]);
    } else {
      break;
    }
    end += 1;
  }
  return { type: "quote", children: parseBlocks(inner.lines, depth + 1), end };
}

function parseList(lines, at, depth) {
  const first = readMarker(lines[at]);
  if (!first) return null;
  const items = [];
  let loose = false;
  let end = at;
  while (end < lines.length) {
    const marker = readMarker(lines[end]);
    if (!marker || marker.kind !== first.kind || (end > at && isRule(lines[end]))) break;
    const item = readItem(lines, end, marker, first.indent);
    const children = parseBlocks(item.lines, depth + 1);
    loose ||= children.some((child, i) => i > 0 && isBlank(item.lines[child.start - 1]));
    items.push({ task: item.task, children });
    end = item.end;
    const next = skipBlank(lines, end);
    if (next === end) continue;
    const following = next < lines.length ? readMarker(lines[next]) : null;
    if (!following || following.kind !== first.kind || isRule(lines[next])) break;
    loose = true;
    end = next;
  }
  return { type: "list", number: first.number, loose, items, end };
}

function readMarker(line) {
  const match = MARKER.exec(line.includes("\t") ? line.replace(MARKER_TABS, expandTabs) : line);
  if (!match || isRule(line)) return null;
  const [, indent, mark, spaces = "", rest = ""] = match;
  const wide = spaces.length > 4; // the item begins with indented code
  return {
    kind: mark.at(-1),
    number: mark.length > 1 ? Number.parseInt(mark, 10) : null,
    indent: indent.length,
    width: indent.length + mark.length + (wide || !rest ? 1 : spaces.length),
    rest: wide ? spaces.slice(1) + rest : rest,
  };
}

/** Returns the lines of a list item, without its marker and indentation. */
function readItem(lines, at, marker, listIndent) {
  let first = marker.rest;
  let task = null;
  const box = TASK.exec(first);
  if (box) {
    task = box[1] !== " ";
    first = first.slice(box[0].length);
  }
  const inner = new Inner(first);
  let end = at + 1;
  while (end < lines.length) {
    const line = lines[end];
    if (isBlank(line)) {
      // An item may start with one blank line, but not with two.
      if (inner.lines.length === 1 && isBlank(first)) break;
      const next = skipBlank(lines, end);
      if (next >= lines.length || !belongs(lines[next], marker, listIndent)) break;
      for (; end < next; end += 1) inner.push("");
    } else if (belongs(line, marker, listIndent)) {
      inner.push(dedent(line, marker.width));
      end += 1;
    } else if (inner.takesLazily(lines, end)) {
      inner.pushLazily(line);
      end += 1;
    } else {
      break;
    }
  }
  return { lines: inner.lines, task, end };
}

/** Returns whether a line is in an item. Models often indent by two under "1.", not three. */
function belongs(line, marker, listIndent) {
  const indent = indentOf(line);
  if (indent >= marker.width) return true;
  return indent >= listIndent + 2 && readMarker(line.trimStart()) !== null;
}

/** Collects the lines inside a container, and tracks whether a code fence is open. */
class Inner {
  constructor(...lines) {
    this.lines = [];
    this.fence = null;
    for (const line of lines) this.push(line);
  }

  push(line) {
    this.lines.push(line);
    const text = line.trimStart();
    if (this.fence === null) this.fence = openingFence(text)?.mark ?? null;
    else if (closesFence(text, this.fence)) this.fence = null;
  }

  /** Adds a line without the container's mark; it cannot underline a heading. */
  pushLazily(line) {
    this.push((underline(line) ? "\\" : "") + line.trimStart());
  }

  /** Returns whether a line without the container's mark continues its paragraph. */
  takesLazily(lines, at) {
    const last = this.lines.at(-1) ?? "";
    if (this.fence !== null || isBlank(last) || isBlank(lines[at])) return false;
    if (openingFence(last.trimStart()) || HEADING.test(last) || isRule(last)) return false;
    return !interrupts(lines, at) && !readMarker(lines[at]);
  }
}

// -- characters -----------------------------------------------------------------------------------

function isBlank(line) {
  return line.trim() === "";
}

function skipBlank(lines, at) {
  let next = at;
  while (next < lines.length && isBlank(lines[next])) next += 1;
  return next;
}

/** Returns the indentation in columns; a tab goes to the next multiple of four. */
function indentOf(line) {
  let column = 0;
  for (let i = 0; line[i] === " " || line[i] === "\t"; i += 1) column = nextColumn(line[i], column);
  return column;
}

/** Returns the line with up to `columns` columns of indentation removed. */
function dedent(line, columns) {
  let [i, column] = [0, 0];
  for (; column < columns && (line[i] === " " || line[i] === "\t"); i += 1) {
    column = nextColumn(line[i], column);
  }
  return " ".repeat(Math.max(column - columns, 0)) + line.slice(i);
}

function nextColumn(space, column) {
  return space === "\t" ? column + 4 - (column % 4) : column + 1;
}

function expandTabs(text) {
  let expanded = "";
  for (const mark of text) {
    expanded += mark === "\t" ? " ".repeat(4 - (expanded.length % 4)) : mark;
  }
  return expanded;
}

function isRun(text, mark) {
  for (const each of text) if (each !== mark) return false;
  return true;
}
