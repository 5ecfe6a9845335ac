// The languages of the highlighter: their comments, strings and words, as data.
//
// line, block: how comments begin (and end) · strings: [open, close, options] with "m" when it may
// span lines and "r" when a backslash is only a backslash · words: keywords · values: constants
// and types · word: characters of a name · folded: words in any case · key: `name:` is a property.

const words = (text) => new Set(text.split(" "));
const QUOTES = [['"', '"', ""], ["'", "'", ""]];
const C_COMMENTS = { line: ["//"], block: [["/*", "*/"]] };

const C_WORDS =
  "auto break case const continue default do else enum extern for goto if inline register " +
  "return sizeof static struct switch typedef union volatile while";
const CPP_WORDS =
  " alignas catch class concept consteval constexpr constinit co_await co_return co_yield " +
  "decltype delete explicit export final friend mutable namespace new noexcept operator override " +
  "private protected public requires static_cast reinterpret_cast template this throw try " +
  "typename using virtual #include #define #if #ifdef #ifndef #else #endif #pragma";
const C_TYPES =
  "bool char double float int long short signed unsigned void size_t int8_t int16_t int32_t " +
  "int64_t uint8_t uint16_t uint32_t uint64_t true false nullptr NULL std string vector";
const JS_WORDS =
  "as async await break case catch class const continue debugger default delete do else export " +
  "extends finally for from function get if import in instanceof let new of return set static " +
  "super switch this throw try typeof var void while with yield";
const TS_WORDS =
  " abstract declare enum implements interface is keyof namespace private protected public " +
  "readonly satisfies type";
const JS_VALUES = "true false null undefined NaN Infinity console Math JSON Object Array Promise";
const TS_VALUES = " string number boolean any unknown never bigint symbol";
const SQL_WORDS =
  "select from where group by order having limit offset insert into values update set delete " +
  "create table index view drop alter add column primary key foreign references unique not and " +
  "or in is like between exists case when then else end join left right inner outer full on as " +
  "distinct union all with recursive returning default check constraint asc desc begin commit";

export const LANGUAGES = {
  python: {
    line: ["#"],
    strings: [['"""', '"""', "m"], ["'''", "'''", "m"], ...QUOTES],
    words: words(
      "and as assert async await break case class continue def del elif else except finally for " +
        "from global if import in is lambda match nonlocal not or pass raise return try while " +
        "with yield",
    ),
    values: words(
      "True False None self cls int float str bool bytes list dict set tuple object print len " +
        "range enumerate zip map filter sorted sum min max open super isinstance type",
    ),
    word: /[\p{L}_@][\p{L}\p{N}_]*/uy,
  },
  javascript: {
    ...C_COMMENTS,
    strings: [["`", "`", "m"], ...QUOTES],
    words: words(JS_WORDS),
    values: words(JS_VALUES),
  },
  typescript: {
    ...C_COMMENTS,
    strings: [["`", "`", "m"], ...QUOTES],
    words: words(JS_WORDS + TS_WORDS),
    values: words(JS_VALUES + TS_VALUES),
  },
  c: { ...C_COMMENTS, strings: QUOTES, words: words(C_WORDS + CPP_WORDS), values: words(C_TYPES) },
  csharp: {
    ...C_COMMENTS,
    strings: QUOTES,
    words: words(
      "abstract as async await base break case catch class const continue default do else enum " +
        "event finally for foreach get if in interface internal is lock namespace new out " +
        "override params private protected public readonly record ref return sealed set static " +
        "struct switch this throw try using var virtual void while yield",
    ),
    values: words("bool byte char decimal double float int long object string true false null"),
  },
  java: {
    ...C_COMMENTS,
    strings: [['"""', '"""', "m"], ...QUOTES],
    words: words(
      "abstract break case catch class const continue default do else enum extends final finally " +
        "for fun if implements import in instanceof interface is native new object override " +
        "package private protected public record return static super switch synchronized this " +
        "throw throws try val var when while",
    ),
    values: words("boolean byte char double float int long short void true false null String"),
  },
  go: {
    ...C_COMMENTS,
    strings: [["`", "`", "mr"], ...QUOTES],
    words: words(
      "break case chan const continue default defer else fallthrough for func go goto if import " +
        "interface map package range return select struct switch type var",
    ),
    values: words(
      "bool byte error float32 float64 int int32 int64 rune string uint uint8 uint64 any true " +
        "false nil append cap close copy len make new panic",
    ),
  },
  rust: {
    ...C_COMMENTS,
    strings: [['"', '"', "m"], ["'", "'", "1"]],
    words: words(
      "as async await break const continue crate dyn else enum extern fn for if impl in let loop " +
        "match mod move mut pub ref return self static struct super trait type unsafe use where " +
        "while",
    ),
    values: words(
      "bool char f32 f64 i8 i16 i32 i64 isize str u8 u16 u32 u64 usize Self String Vec Option " +
        "Some None Result Ok Err Box true false",
    ),
  },
  shell: {
    line: ["#"],
    strings: [['"', '"', "m"], ["'", "'", "mr"]],
    words: words(
      "if then else elif fi for while until do done case esac in function return export local " +
        "source set unset exit trap",
    ),
    values: words(
      "cd ls cp mv rm mkdir cat echo grep sed awk find sudo apt pip python git make curl docker " +
        "npm",
    ),
    word: /\$\{?[\w@#?*!]+\}?|[A-Za-z_][\w-]*/y,
  },
  sql: {
    line: ["--"],
    block: [["/*", "*/"]],
    strings: [["'", "'", "mr"], ['"', '"', "r"]],
    words: words(SQL_WORDS),
    values: words("int integer bigint text varchar boolean date timestamp real null true false"),
    folded: true,
  },
  json: {
    ...C_COMMENTS,
    strings: [['"', '"', ""]],
    words: words(""),
    values: words("true false null"),
    key: true,
  },
  yaml: {
    line: ["#"],
    strings: QUOTES,
    words: words(""),
    values: words("true false null yes no on off"),
    word: /[A-Za-z_][\w.-]*/y,
    key: true,
  },
  toml: {
    line: ["#", ";"],
    strings: [['"""', '"""', "m"], ...QUOTES],
    words: words(""),
    values: words("true false"),
    word: /[A-Za-z_][\w.-]*/y,
    key: true,
  },
  css: {
    block: [["/*", "*/"]],
    strings: QUOTES,
    words: words("@media @import @supports @keyframes @layer @font-face !important"),
    values: words("auto none inherit initial solid flex grid block absolute relative fixed"),
    word: /[@!#.]?[A-Za-z_-][\w-]*/y,
    key: true,
  },
  html: { block: [["<!--", "-->"]], strings: QUOTES, tags: true },
  diff: { diff: true },
};

const ALIASES = {
  py: "python", python3: "python", pyi: "python", js: "javascript", jsx: "javascript",
  mjs: "javascript", node: "javascript", ts: "typescript", tsx: "typescript", h: "c", cc: "c",
  cpp: "c", "c++": "c", hpp: "c", cuda: "c", glsl: "c", "c#": "csharp", cs: "csharp",
  kotlin: "java", kt: "java", swift: "java", scala: "java", golang: "go", rs: "rust", sh: "shell",
  bash: "shell", zsh: "shell", console: "shell", fish: "shell", dockerfile: "shell",
  makefile: "shell", mysql: "sql", sqlite: "sql", postgresql: "sql", jsonc: "json", json5: "json",
  yml: "yaml", ini: "toml", cfg: "toml", conf: "toml", scss: "css", less: "css", xml: "html",
  svg: "html", vue: "html", patch: "diff",
};

/** Returns the language by its name after a code fence, or undefined. */
export function languageOf(name) {
  const key = Object.hasOwn(ALIASES, name) ? ALIASES[name] : name;
  return Object.hasOwn(LANGUAGES, key) ? LANGUAGES[key] : undefined;
}
