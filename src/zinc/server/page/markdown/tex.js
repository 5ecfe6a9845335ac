// A parser of TeX formulas: text -> plain objects like MathML, which browsers can lay out.
//
// It supports what models usually write: fractions, roots, scripts, sums, accents, alphabets and
// matrices. A formula with anything else gives null, and is shown as text.
//
// Nodes: {tag, text} or {tag, children}, both with `attributes`.

const MAX_DEPTH = 40;
const MAX_CHARACTERS = 4000; // browsers take a time that grows with the square of a row
const TOKEN = /\\(?:[A-Za-z]+\*?|[^])|\d+(?:\.\d+)?|[^]/uy;
const SPACE = /\s*/y;

const LETTERS = table(`
  alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι
  kappa κ lambda λ mu μ nu ν xi ξ pi π varpi ϖ rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ
  phi ϕ varphi φ chi χ psi ψ omega ω ell ℓ hbar ℏ imath ı jmath ȷ partial ∂`);
const UPRIGHT = table(`
  Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω nabla ∇ infty ∞
  emptyset ∅ varnothing ∅ Re ℜ Im ℑ aleph ℵ forall ∀ exists ∃ nexists ∄ angle ∠ top ⊤ bot ⊥
  degree ° ldots … dots … cdots ⋯ vdots ⋮ ddots ⋱ square □ checkmark ✓ % % $ $ # # & & _ _`);
const OPERATORS = table(`
  times × cdot ⋅ div ÷ pm ± mp ∓ ast ∗ star ⋆ circ ∘ bullet • oplus ⊕ ominus ⊖ otimes ⊗ odot ⊙
  leq ≤ le ≤ geq ≥ ge ≥ leqslant ⩽ geqslant ⩾ neq ≠ ne ≠ equiv ≡ approx ≈ sim ∼ simeq ≃ cong ≅
  propto ∝ ll ≪ gg ≫ prec ≺ succ ≻ subset ⊂ supset ⊃ subseteq ⊆ supseteq ⊇ subsetneq ⊊ in ∈
  notin ∉ ni ∋ cup ∪ cap ∩ setminus ∖ land ∧ wedge ∧ lor ∨ vee ∨ neg ¬ lnot ¬ to → rightarrow →
  leftarrow ← gets ← leftrightarrow ↔ Rightarrow ⇒ Leftarrow ⇐ Leftrightarrow ⇔ implies ⟹ iff ⟺
  longrightarrow ⟶ Longrightarrow ⟹ mapsto ↦ uparrow ↑ downarrow ↓ nearrow ↗ searrow ↘ mid ∣
  nmid ∤ parallel ∥ perp ⟂ vdash ⊢ models ⊨ therefore ∴ because ∵ colon : triangle △ dagger †
  coloneqq ≔ doteq ≐ triangleq ≜ lesssim ≲ gtrsim ≳ prime ′ lt < gt >`);
const FENCES = table(`
  langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ lvert | rvert | lVert ‖ rVert ‖ vert |
  Vert ‖ | ‖ { { } } lbrace { rbrace } lbrack [ rbrack ] backslash \\`);
const SUMS = table(`
  sum ∑ prod ∏ coprod ∐ bigcup ⋃ bigcap ⋂ bigoplus ⨁ bigotimes ⨂ bigvee ⋁ bigwedge ⋀`);
const INTEGRALS = table("int ∫ iint ∬ iiint ∭ oint ∮");
const FUNCTIONS = new Set(`arccos arcsin arctan arg cos cosh cot coth csc deg det dim exp gcd hom
  ker lg ln log Pr sec sin sinh tan tanh`.split(/\s+/));
const LIMITS = new Set("lim limsup liminf max min sup inf argmax argmin".split(" "));
const SPACES = {
  ",": 0.17, ":": 0.22, ">": 0.22, ";": 0.28, " ": 0.25, enspace: 0.5, quad: 1, qquad: 2,
};
const ACCENTS = table(`
  hat ^ widehat ^ bar ¯ vec → overrightarrow → dot ˙ ddot ¨ tilde ~ widetilde ~ check ˇ
  breve ˘ acute ´ grave \` mathring ˚`);
const BRACES = table("overbrace ⏞ underbrace ⏟");
const ARROWS = table("xrightarrow → xleftarrow ← xRightarrow ⇒ stackrel . overset . underset .");
const TEXTS = new Set(`text textrm textnormal textup textsf texttt textit textbf mbox hbox mathrm
  operatorname operatorname* mathop`.split(/\s+/));
// The first of A, a and 0 in Unicode's mathematical alphabets. Some letters are in older blocks.
const ALPHABETS = {
  mathbb: [0x1d538, 0x1d552, 0x1d7d8, "CℂHℍNℕPℙQℚRℝZℤ"],
  mathbf: [0x1d400, 0x1d41a, 0x1d7ce, ""],
  mathcal: [0x1d49c, 0x1d4b6, 0, "BℬEℰFℱHℋIℐLℒMℳRℛeℯgℊoℴ"],
  mathfrak: [0x1d504, 0x1d51e, 0, "CℭHℌIℑRℜZℨ"],
  mathsf: [0x1d5a0, 0x1d5ba, 0x1d7e2, ""],
  mathtt: [0x1d670, 0x1d68a, 0x1d7f6, ""],
};
Object.assign(ALPHABETS, {
  boldsymbol: ALPHABETS.mathbf, bm: ALPHABETS.mathbf, mathscr: ALPHABETS.mathcal,
});
const MATRICES = {
  matrix: "", pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", Vmatrix: "‖‖",
  smallmatrix: "", array: "", cases: "{.", aligned: "", align: "", "align*": "", split: "",
  gathered: "", gather: "", "gather*": "", equation: "", "equation*": "", alignedat: "",
};
const IGNORED = new Set(`displaystyle textstyle scriptstyle limits nolimits nonumber notag !
  big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr hfill`.split(/\s+/));

/** Returns the nodes of a formula, or null if it is too long or not supported. */
export function parseTex(text) {
  if (text.length > MAX_CHARACTERS) return null;
  try {
    const parser = new TexParser(text);
    const nodes = parser.row(() => parser.at >= text.length);
    return parser.at < text.length ? null : nodes;
  } catch (error) {
    if (error instanceof UnknownTex) return null;
    throw error;
  }
}

class UnknownTex extends Error {}

class TexParser {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.depth = 0;
    this.skipSpace();
  }

  skipSpace() {
    SPACE.lastIndex = this.at;
    SPACE.exec(this.text);
    this.at = SPACE.lastIndex;
  }

  peek() {
    TOKEN.lastIndex = this.at;
    return TOKEN.exec(this.text)?.[0] ?? "";
  }

  take() {
    const token = this.peek();
    if (!token) throw new UnknownTex();
    this.at += token.length;
    this.skipSpace();
    return token;
  }

  expect(token) {
    if (this.take() !== token) throw new UnknownTex();
  }

  /** Returns the nodes up to the position where `ends` is true; fails if there is none. */
  row(ends) {
    if (++this.depth > MAX_DEPTH) throw new UnknownTex();
    const nodes = [];
    while (!ends()) {
      const node = this.scripts(this.atom());
      if (node) nodes.push(node);
    }
    this.depth -= 1;
    return nodes;
  }

  group() {
    this.expect("{");
    const nodes = this.row(() => this.peek() === "}");
    this.take();
    return group(nodes);
  }

  /** Returns the argument of a command: a group, or one symbol without braces. */
  argument() {
    const token = this.peek();
    if (token === "{") return this.group();
    if (!/^\d/.test(token)) return this.atom() ?? group([]);
    this.at += 1; // of a number without braces, the first digit
    this.skipSpace();
    return leaf("mn", token[0]);
  }

  /** Returns the text of a group unchanged. */
  raw() {
    const end = this.text.indexOf("}", this.at);
    if (this.text[this.at] !== "{" || end < 0) throw new UnknownTex();
    const text = this.text.slice(this.at + 1, end).replace(/\\[,;: ]|~/g, " ");
    if (/[\\{$]/.test(text)) throw new UnknownTex();
    this.at = end + 1;
    this.skipSpace();
    return text;
  }

  option() {
    if (this.peek() !== "[") return null;
    this.take();
    const nodes = this.row(() => this.peek() === "]");
    this.take();
    return group(nodes);
  }

  atom() {
    const token = this.peek();
    if (token === "{") return this.group();
    if (token === "}" || token === "&" || token === "^" || token === "_" || token === "'") {
      if (token === "}" || token === "&") throw new UnknownTex();
      return group([]); // scripts without anything before them
    }
    this.take();
    if (token[0] === "\\") return this.command(token.slice(1));
    if (/^\d/.test(token)) return leaf("mn", token);
    if (/^\p{L}$/u.test(token)) return leaf("mi", token);
    if (token === "~") return space(0.25);
    if ("()[]|".includes(token)) return leaf("mo", token, { stretchy: "false" });
    return leaf("mo", { "-": "−", "*": "∗" }[token] ?? token);
  }

  scripts(base) {
    let [below, above, primes] = [null, null, ""];
    for (;;) {
      const mark = this.peek();
      if (mark === "'" && !above) primes += "′";
      else if (mark !== "^" && mark !== "_") break;
      this.take();
      if (mark === "'") continue;
      if (mark === "_" ? below : above) throw new UnknownTex();
      if (mark === "_") below = this.argument();
      else above = this.argument();
    }
    if (primes) above = group([leaf("mo", primes), ...(above ? [above] : [])]);
    if (!below && !above) return base;
    const [onlyBelow, onlyAbove, both] = base?.limits
      ? ["munder", "mover", "munderover"]
      : ["msub", "msup", "msubsup"];
    const tag = below && above ? both : below ? onlyBelow : onlyAbove;
    const scripts = [below, above].filter((script) => script !== null);
    return { tag, children: [base ?? group([]), ...scripts] };
  }

  command(name) {
    if (LETTERS.has(name)) return leaf("mi", LETTERS.get(name));
    if (UPRIGHT.has(name)) return leaf("mi", UPRIGHT.get(name), { mathvariant: "normal" });
    if (OPERATORS.has(name)) return leaf("mo", OPERATORS.get(name));
    if (FENCES.has(name)) return leaf("mo", FENCES.get(name), { stretchy: "false" });
    if (INTEGRALS.has(name)) return leaf("mo", INTEGRALS.get(name));
    if (SUMS.has(name)) return { ...leaf("mo", SUMS.get(name), MOVABLE), limits: true };
    if (LIMITS.has(name)) return { ...leaf("mo", name, MOVABLE), limits: true };
    if (FUNCTIONS.has(name)) {
      const rspace = this.peek() === "(" ? "0" : "0.17em";
      return leaf("mo", name, { lspace: "0.17em", rspace });
    }
    if (name in SPACES) return space(SPACES[name]);
    if (IGNORED.has(name)) return null;
    if (name in ALPHABETS) return this.alphabet(ALPHABETS[name]);
    if (TEXTS.has(name)) return this.words(name);
    if (ACCENTS.has(name)) {
      const children = [this.argument(), leaf("mo", ACCENTS.get(name))];
      return { tag: "mover", children, attributes: { accent: "true" } };
    }
    if (BRACES.has(name)) {
      const tag = name === "overbrace" ? "mover" : "munder";
      const children = [this.argument(), leaf("mo", BRACES.get(name), { stretchy: "true" })];
      return { tag, children, limits: true };
    }
    if (ARROWS.has(name)) return this.over(name);
    switch (name) {
      case "frac": case "dfrac": case "tfrac": case "cfrac":
        return { tag: "mfrac", children: [this.argument(), this.argument()] };
      case "binom": case "dbinom": case "tbinom": {
        const children = [this.argument(), this.argument()];
        const pair = { tag: "mfrac", children, attributes: { linethickness: "0" } };
        return fenced("(", [pair], ")");
      }
      case "sqrt": {
        const index = this.option();
        const inner = this.argument();
        return index
          ? { tag: "mroot", children: [inner, index] }
          : { tag: "msqrt", children: [inner] };
      }
      case "left": return this.leftRight();
      case "middle": return leaf("mo", this.delimiter(), { stretchy: "true" });
      case "begin": return this.environment();
      case "not": {
        const node = this.atom();
        if (node?.tag !== "mo") throw new UnknownTex();
        return leaf("mo", `${node.text}\u0338`);
      }
      case "bmod": case "mod": return leaf("mo", "mod", { lspace: "0.3em", rspace: "0.3em" });
      case "pmod": {
        const inner = [leaf("mo", "mod", { rspace: "0.3em" }), this.argument()];
        return group([space(0.5), fenced("(", inner, ")")]);
      }
      case "boxed": case "overline": case "underline":
        return { tag: "mrow", children: [this.argument()], attributes: { class: name } };
      case "tag": return group([space(1), leaf("mtext", `(${this.raw()})`)]);
      case "color": this.raw(); return null;
      case "textcolor": this.raw(); return this.argument();
      default: throw new UnknownTex();
    }
  }

  /** Parses two arguments that are stacked, such as a binomial. */
  over(name) {
    const first = this.argument();
    if (name[0] === "x") {
      const arrow = leaf("mo", ARROWS.get(name), { stretchy: "true" });
      return { tag: "mover", children: [arrow, first] };
    }
    return { tag: name === "underset" ? "munder" : "mover", children: [this.argument(), first] };
  }

  words(name) {
    const text = this.raw();
    const isName = name === "mathrm" || name.startsWith("operatorname") || name === "mathop";
    if (!isName) return leaf("mtext", text.replace(/ /g, "\u00a0"));
    const node = leaf("mi", text.trim(), { mathvariant: "normal" });
    return name === "operatorname*" ? { ...node, limits: true } : node;
  }

  alphabet([upper, lower, digit, apart]) {
    const start = this.at;
    const inner = this.argument();
    const text = this.text.slice(start, this.at).replace(/[{}\s]/g, "");
    if (!/^[A-Za-z0-9]+$/.test(text)) return inner; // Greek and the like keep their form
    let styled = "";
    for (const character of text) {
      const before = apart.indexOf(character);
      const [first, base] =
        character >= "a" ? [0x61, lower] : character >= "A" ? [0x41, upper] : [0x30, digit];
      if (before >= 0) styled += apart[before + 1];
      else if (base) styled += String.fromCodePoint(base + character.charCodeAt(0) - first);
      else styled += character;
    }
    return leaf("mi", styled);
  }

  delimiter() {
    const token = this.take();
    if (token === ".") return "";
    const name = token.slice(1);
    const found = token[0] === "\\" ? FENCES.get(name) ?? OPERATORS.get(name) : token;
    if (!found || /[\w{}]/.test(token[0])) throw new UnknownTex();
    return { "<": "⟨", ">": "⟩" }[found] ?? found;
  }

  leftRight() {
    const open = this.delimiter();
    const inner = this.row(() => this.peek() === "\\right");
    this.take();
    return fenced(open, inner, this.delimiter());
  }

  environment() {
    const name = this.raw();
    const fences = MATRICES[name];
    if (fences === undefined) throw new UnknownTex();
    if (name === "array" || name === "alignedat") this.raw();
    const rows = [[]];
    const ends = () => ["&", "\\\\", "\\end"].includes(this.peek());
    for (;;) {
      while (this.peek() === "\\hline") this.take();
      rows.at(-1).push({ tag: "mtd", children: this.row(ends) });
      const end = this.take();
      if (end === "\\end") break;
      if (end === "&") continue;
      if (this.peek() === "[") this.option(); // the space between rows
      rows.push([]);
    }
    if (this.raw() !== name) throw new UnknownTex();
    if (rows.length > 1 && rows.at(-1).every((cell) => cell.children.length === 0)) rows.pop();
    const kind = /^(?:align|split)/.test(name) ? "aligned" : name === "cases" ? "cases" : "matrix";
    const attributes = { class: kind, ...(kind === "aligned" ? { displaystyle: "true" } : {}) };
    const children = rows.map((cells) => ({ tag: "mtr", children: cells }));
    const table = { tag: "mtable", children, attributes };
    return fences ? fenced(fences[0], [table], fences[1].replace(".", "")) : table;
  }
}

const MOVABLE = { movablelimits: "true" };

function leaf(tag, text, attributes = {}) {
  return { tag, text, attributes };
}

function group(children) {
  return children.length === 1 ? children[0] : { tag: "mrow", children };
}

function space(width) {
  return leaf("mspace", "", { width: `${width}em` });
}

function fenced(open, inner, close) {
  const fence = (mark) => (mark ? [leaf("mo", mark, { stretchy: "true" })] : []);
  return { tag: "mrow", children: [...fence(open), ...inner, ...fence(close)] };
}

function table(text) {
  const words = text.trim().split(/\s+/);
  return new Map(words.flatMap((word, i) => (i % 2 ? [] : [[word, words[i + 1]]])));
}
