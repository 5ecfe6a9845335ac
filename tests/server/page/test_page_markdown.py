"""The Markdown renderer, run in a browser. Expected results follow CommonMark 0.31."""

from __future__ import annotations

from typing import Any

import pytest

RENDER = """async (text) => {
    const { MarkdownView } = await import("/page/markdown/view.js");
    const root = document.createElement("div");
    new MarkdownView(root).update(text);
    root.querySelectorAll("button, .code-head").forEach((each) => each.remove());
    root.querySelectorAll("*").forEach((each) => {
        for (const name of each.getAttributeNames()) {
            if (!["href", "start", "checked"].includes(name)) each.removeAttribute(name);
        }
        if (each.checked) each.setAttribute("checked", "");
        if (each.tagName === "SPAN") each.replaceWith(...each.childNodes);
    });
    return root.innerHTML;
}"""

CASES = {
    "plain": ("a\nb", "<p>a<br>b</p>"),
    "paragraphs": ("a\n\n\nb", "<p>a</p><p>b</p>"),
    "emphasis": ("*a* _b_ **c** __d__ ***e***",
        "<p><em>a</em> <em>b</em> <strong>c</strong> <strong>d</strong> "
        "<em><strong>e</strong></em></p>"),
    "emphasis nests": ("**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"),
    "no emphasis": ("a_b_c 2 * 3 * 4 **x", "<p>a_b_c 2 * 3 * 4 **x</p>"),
    "emphasis without spaces": ("他说**你好。**然后", "<p>他说<strong>你好。</strong>然后</p>"),
    "deleted": ("~~a~~ ~b~", "<p><del>a</del> <del>b</del></p>"),
    "code span": ("`` a`b `` `c", "<p><code>a`b</code> `c</p>"),
    "code wins": ("*a `b*` c", "<p>*a <code>b*</code> c</p>"),
    "escapes": (r"\*a\* \` \\ \q", "<p>*a* ` \\ \\q</p>"),
    "entities": ("&lt;b&gt; &amp; &#x41; &bogus;", "<p>&lt;b&gt; &amp; A &amp;bogus;</p>"),
    "line breaks": ("a  \nb\\\nc<br>d", "<p>a<br>b<br>c<br>d</p>"),
    "html is text": ("<b>x</b>", "<p>&lt;b&gt;x&lt;/b&gt;</p>"),
    "link": ('[a *b*](https://x.org/y_(z)?q=1&amp;r "t")',
        '<p><a href="https://x.org/y_(z)?q=1&amp;r">a <em>b</em></a></p>'),
    "link in text": ("see https://x.org/a_b, or (www.y.org).",
        '<p>see <a href="https://x.org/a_b">https://x.org/a_b</a>, '
        'or (<a href="https://www.y.org/">www.y.org</a>).</p>'),
    "link with a port and a query": ("http://127.0.0.1:8080/v1?a=1,2;b=(c)&d=e!f#g, or *https://x.org*!",
        '<p><a href="http://127.0.0.1:8080/v1?a=1,2;b=(c)&amp;d=e!f#g">'
        'http://127.0.0.1:8080/v1?a=1,2;b=(c)&amp;d=e!f#g</a>, '
        'or <em><a href="https://x.org/">https://x.org</a></em>!</p>'),
    "link in Chinese": ("见https://x.org。好", '<p>见<a href="https://x.org/">https://x.org</a>。好</p>'),
    "autolink": ("<https://x.org> <a@x.org>",
        '<p><a href="https://x.org/">https://x.org</a> <a href="mailto:a@x.org">a@x.org</a></p>'),
    "link with an unsafe scheme": ("[a](javascript:b) [c](/d)", "<p>a c</p>"),
    "image": ("![cat](https://x.org/c.png)",
        '<p><a href="https://x.org/c.png">[image: cat]</a></p>'),
    "no link": ("[a] (b) [c](d", "<p>[a] (b) [c](d</p>"),
    "headings": ("# a #\n## b\nc\n===\n####### d",
        "<h3>a</h3><h4>b</h4><h3>c</h3><p>####### d</p>"),
    "rule": ("a\n\n---\n* * *", "<p>a</p><hr><hr>"),
    "quote": ("> a\nb\n> > c\n\nd",
        "<blockquote><p>a<br>b</p><blockquote><p>c</p></blockquote></blockquote><p>d</p>"),
    "fence": ("```py\nx = 1\n\ty\n```\nz", "<div><pre><code>x = 1\n\ty</code></pre></div><p>z</p>"),
    "fence is open": ("~~~\n```\n# x", "<div><pre><code>```\n# x</code></pre></div>"),
    "longer fence": ("````\n```\n````", "<div><pre><code>```</code></pre></div>"),
    "indented": ("a\n\n    b\n\n    c", "<p>a</p><div><pre><code>b\n\nc</code></pre></div>"),
    "list": ("- a\n- b\n  c", "<ul><li><p>a</p></li><li><p>b<br>c</p></li></ul>"),
    "numbers": ("3. a\n4. b", '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol>'),
    "nested list": ("1. a\n   - b\n     - c\n2. d",
        "<ol><li><p>a</p><ul><li><p>b</p><ul><li><p>c</p></li></ul></li></ul></li>"
        "<li><p>d</p></li></ol>"),
    "nested by two": ("1. a\n  - b\n2. c",
        "<ol><li><p>a</p><ul><li><p>b</p></li></ul></li><li><p>c</p></li></ol>"),
    "list with code": ("- a\n\n  ```\n  b\n  ```\n- c",
        "<ul><li><p>a</p><div><pre><code>b</code></pre></div></li><li><p>c</p></li></ul>"),
    "list after text": ("a:\n- b\n2. c", "<p>a:</p><ul><li><p>b</p></li></ul>"
        '<ol start="2"><li><p>c</p></li></ol>'),
    "tasks": ("- [x] a\n- [ ] b",
        '<ul><li><input checked=""><div><p>a</p></div></li>'
        "<li><input><div><p>b</p></div></li></ul>"),
    "table": (r"a" "\n| x | `y` |\n|---|:-:|\n| 1 \\| 2 | **3**\n\nb",
        "<p>a</p><div><table><thead><tr><th>x</th><th><code>y</code></th></tr></thead>"
        "<tbody><tr><td>1 | 2</td><td><strong>3</strong></td></tr></tbody></table></div><p>b</p>"),
    "formula": ("a $x_1^2$, \\(y\\) b",
        "<p>a <math><mrow><msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup></mrow></math>, "
        "<math><mrow><mi>y</mi></mrow></math> b</p>"),
    "formula on its own": ("so:\n$$\n\\frac{a}{b}\n- c\n$$.\nthen\n\\[ d \\]",
        "<p>so:</p><div><math><mrow><mfrac><mi>a</mi><mi>b</mi></mfrac><mo>−</mo><mi>c</mi></mrow>"
        "</math>.</div><p>then</p><div><math><mrow><mi>d</mi></mrow></math></div>"),
    "formula in a list": ("- a\n  $$\n  b\n  $$\n- $c$",
        "<ul><li><p>a</p><div><math><mrow><mi>b</mi></mrow></math></div></li>"
        "<li><p><math><mrow><mi>c</mi></mrow></math></p></li></ul>"),
    "formula wins": ("$a*b$ *c* $d_e$ `$f$`",
        "<p><math><mrow><mi>a</mi><mo>∗</mo><mi>b</mi></mrow></math> <em>c</em> "
        "<math><mrow><msub><mi>d</mi><mi>e</mi></msub></mrow></math> <code>$f$</code></p>"),
    "no formula": ("$5 and $10, US$ 6, 7$ or 8$. $ x $ \\$y$ $PATH $$\n\n\\( a\n\n$$\nb\n\n$$",
        "<p>$5 and $10, US$ 6, 7$ or 8$. $ x $ $y$ $PATH $$</p><p>( a</p><p>$$<br>b</p><p>$$</p>"),
    "formula that is not known": (r"$\weird{*x*}$" "\n\n" r"$$\frac{a}$$",
        r"<p><code>\weird{*x*}</code></p><div><code>\frac{a}</code></div>"),
    "no table": ("| a | b |\n|---|", "<p>| a | b |<br>|---|</p>"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_blocks_and_inline(lab: Any, name: str) -> None:
    text, expected = CASES[name]
    assert lab.evaluate(RENDER, text) == expected


FORMULAS = {
    r"\sqrt[3]{x}": "<mroot><mi>x</mi><mn>3</mn></mroot>",
    r"\sum_{i=1}^n i": "<munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow>"
        "<mi>n</mi></munderover><mi>i</mi>",
    r"\mathbb{R}^n\to\mathbf{A}": "<msup><mi>ℝ</mi><mi>n</mi></msup><mo>→</mo><mi>𝐀</mi>",
    r"f'(x)": "<msup><mi>f</mi><mo>′</mo></msup><mo>(</mo><mi>x</mi><mo>)</mo>",
    r"\left(\frac12\right.": "<mrow><mo>(</mo><mfrac><mn>1</mn><mn>2</mn></mfrac></mrow>",
    r"\begin{pmatrix}a&b\\c&d\end{pmatrix}": "<mrow><mo>(</mo><mtable><mtr><mtd><mi>a</mi></mtd>"
        "<mtd><mi>b</mi></mtd></mtr><mtr><mtd><mi>c</mi></mtd><mtd><mi>d</mi></mtd></mtr></mtable>"
        "<mo>)</mo></mrow>",
    r"\begin{cases}1&\text{if }a\\\end{cases}": "<mrow><mo>{</mo><mtable><mtr><mtd><mn>1</mn></mtd>"
        "<mtd><mtext>if&nbsp;</mtext><mi>a</mi></mtd></mtr></mtable></mrow>",
    r"\hat{y}\not=\operatorname{ReLU}": "<mover><mi>y</mi><mo>^</mo></mover><mo>=\u0338</mo>"
        "<mi>ReLU</mi>",
    r"10\,\%": "<mn>10</mn><mspace></mspace><mi>%</mi>",
}  # fmt: skip


@pytest.mark.parametrize("tex", FORMULAS)
def test_formulas(lab: Any, tex: str) -> None:
    expected = f"<div><math><mrow>{FORMULAS[tex]}</mrow></math></div>"
    assert lab.evaluate(RENDER, f"$${tex}$$") == expected


@pytest.mark.parametrize(
    "tex",
    [
        "}",
        "{",
        "a^",
        "a_1_2",
        r"\frac{a}",
        r"\left(a",
        r"\begin{pmatrix}a",
        r"\x",
        "a&b",
        "a" * 4001,
    ],
)
def test_text_that_is_not_a_formula_is_unchanged(lab: Any, tex: str) -> None:
    found = lab.evaluate(RENDER, f"$${tex}$$")
    assert found == f"<div><code>{tex.replace('&', '&amp;')}</code></div>"


def test_the_browser_lays_formulas_out(lab: Any) -> None:
    """Check positions: numerator above denominator, exponent above base, sum on its own line."""
    above = lab.evaluate(
        """async () => {
            const { MarkdownView } = await import("/page/markdown/view.js");
            const root = document.createElement("div");
            document.body.append(root);
            new MarkdownView(root).update("x $\\\\frac{a}{b}$ y $c^d$");
            const top = (query) => root.querySelector(query).getBoundingClientRect().bottom;
            const found = [
                top("mfrac :first-child") < top("mfrac :last-child"),
                top("msup :last-child") < top("msup :first-child"),
            ];
            root.remove();
            return found;
        }"""
    )
    assert above == [True, True]


def test_growing_text_gives_the_same_result_as_whole_text(lab: Any) -> None:
    """Random documents built from the cases are cut at random positions."""
    found = lab.evaluate(
        """async (samples) => {
            const { MarkdownView } = await import("/page/markdown/view.js");
            let seed = 1;
            const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
            const shown = (view) => view.root.innerHTML;
            for (let round = 0; round < 250; round += 1) {
                let text = "";
                for (let n = random(8) + 1; n > 0; n -= 1) {
                    text += samples[random(samples.length)] + ["\\n", "\\n\\n", " "][random(3)];
                }
                const grown = new MarkdownView(document.createElement("div"));
                for (let at = 0; at < text.length; at += random(5) + 1) {
                    grown.update(text.slice(0, at));
                }
                grown.update(text);
                const whole = new MarkdownView(document.createElement("div"));
                whole.update(text);
                if (shown(grown) !== shown(whole)) return [text, shown(grown), shown(whole)];
            }
            return null;
        }""",
        [text for text, _ in CASES.values()],
    )
    assert found is None


def test_finished_blocks_keep_their_elements(lab: Any) -> None:
    """Elements are kept when text is added, so a selection or a pressed button survives."""
    kept = lab.evaluate(
        """async () => {
            const { MarkdownView } = await import("/page/markdown/view.js");
            const said = [];
            const view = new MarkdownView(document.createElement("div"), (t) => said.push(t));
            let text = "first\\n\\n```js\\nlet a = 1;\\nlet b";
            view.update(text);
            const [first, code] = view.root.children;
            const line = code.querySelector(".line");
            for (const piece of [" = 2;\\n", "```\\n", "\\n- one\\n- tw", "o\\n\\nlast"]) {
                view.update(text += piece);
            }
            const same = [first === view.root.children[0], code === view.root.children[1],
                line === code.querySelector(".line")];
            view.finish();
            return [same, said];
        }"""
    )
    copied = "jslet a = 1;\nlet b = 2;"
    assert kept == [[True, True, True], ["first", copied, "onetwo", "last"]]


def test_code_is_coloured(lab: Any) -> None:
    kinds = lab.evaluate(
        """async (samples) => {
            const { CodeView } = await import("/page/markdown/code.js");
            return samples.map(([language, text]) => {
                const view = new CodeView(language);
                view.update(text);
                if (view.element.textContent !== text) throw new Error(text);
                return [...view.element.querySelectorAll("[class^=hl]")].map(
                    (each) => `${each.className.slice(3)}:${each.textContent}`);
            });
        }""",
        [
            ["python", 'def f():\n    """a\n    b"""\n    return 0x1F  # c'],
            ["js", "/* a\n b */ const x = `t\n${y}`; // z"],
            ["json", '{"a": true, "b": "c"}'],
            ["html", '<a href="x"><!-- y -->z</a>'],
            ["diff", "-a\n+b\n c"],
            ["rust", "fn f<'a>(x: &'a str) -> char { 'b' }"],
            ["klingon", "if x"],
        ],
    )
    assert kinds[0] == [
        "word:def", "call:f", 'string:"""a', 'string:    b"""', "word:return", "number:0x1F",
        "comment:# c",
    ]  # fmt: skip
    assert kinds[1] == [
        "comment:/* a", "comment: b */", "word:const", "string:`t", "string:${y}`", "comment:// z",
    ]  # fmt: skip
    assert kinds[2] == ['key:"a"', "value:true", 'key:"b"', 'string:"c"']
    assert kinds[3] == [
        "tag:<a", "key:href", 'string:"x"', "tag:>", "comment:<!-- y -->", "tag:</a>",
    ]  # fmt: skip
    assert kinds[4] == ["removed:-a", "added:+b"]
    assert kinds[5] == ["word:fn", "value:str", "value:char", "string:'b'"]
    assert kinds[6] == []


HOSTILE = {
    "brackets": "[" * 30_000 + "]" * 30_000,
    "links": "[a](" * 15_000 + ")",
    "nested links": "[" * 20_000 + "[a](http://x)" * 1_000,
    "images": "![" * 20_000 + "](http://x)" * 5_000,
    "stars": "*a " * 20_000 + "a* " * 20_000,
    "mixed runs": "*a _b ~c " * 8_000 + "c~ b_ a* " * 8_000,
    "backticks": "".join("`" * n + " " for n in range(1, 400)),
    "addresses": "http://" * 10_000,
    "angles": "<http://" * 10_000,
    "quotes": ">" * 50_000,
    "nested items": "- " * 20_000,
    "deep list": "\n".join("  " * n + "- a" for n in range(200)),
    "lazy lines": "- a\n" + "b\n" * 4_000,
    "table rows": "|a\n" * 4_000,
    "columns": "|a" * 5_000 + "\n" + "|-" * 5_000,
    "fences": "```\n" * 3_000,
    "dollars": "$a " * 20_000,
    "pairs of dollars": "$$" * 20_000,
    "open formulas": "\\(a " * 15_000,
    "formulas never closed": "x\n" + "\\[ a\n" * 4_000,
    "deep formula": "$" + "{" * 450 + "}" * 450 + "$",
    "scripts": "$" + "a_{" * 300 + "}" * 300 + "$",
    "one line of code": "```py\n" + "x('" * 30_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_blocks_the_page(lab: Any, name: str) -> None:
    """A quadratic parser would take minutes for these texts."""
    lab.evaluate(RENDER, HOSTILE[name])
