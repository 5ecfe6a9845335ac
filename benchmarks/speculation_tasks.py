"""Tasks whose answers are known: real text, so that a drafter can be measured without a model.

`tasks` reads two releases of Python's standard library and returns, for each kind of task, prompts
and the answers that a model which does the task well would give. The text comes from the library:
functions as they changed between the releases, their comments and names, and the pages of the
language reference in `pydoc_data/topics.py`.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import io
import json
import random
import re
import runpy
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.tokenizer import Tokenizer

LINES = (8, 120)  # the shortest and longest function
SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class Task:
    """A prompt and its known answer."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Function:
    """A function of a module, with its source dedented."""

    module: str
    name: str
    source: str
    docstring: str
    arguments: tuple[str, ...]
    variables: tuple[str, ...]

    @property
    def signature(self) -> str:
        """The lines before the docstring or body."""
        body = ast.parse(self.source).body[0].body  # type: ignore[attr-defined]
        return "".join(self.source.splitlines(keepends=True)[: body[0].lineno - 1])


def functions(library: Path) -> dict[tuple[str, str], Function]:
    """Return the functions of a standard library by module and qualified name."""
    found = {}
    for path in sorted(library.rglob("*.py")):
        module = path.relative_to(library)
        if SKIPPED.isdisjoint(module.parts):
            try:
                source = path.read_text()
                tree = ast.parse(source)
            except (SyntaxError, UnicodeDecodeError):
                continue
            for name, node in _definitions(tree, ""):
                if function := _function(str(module), name, node, source):
                    found[str(module), name] = function
    return found


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _definitions(child, f"{prefix}{child.name}.")


def _function(module: str, name: str, node: ast.FunctionDef, source: str) -> Function | None:
    assert node.end_lineno is not None
    if not LINES[0] <= node.end_lineno - node.lineno + 1 <= LINES[1]:
        return None
    lines = source.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno]
    stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and _is_stored(n)}
    names = [a.arg for a in node.args.args if a.arg not in ("self", "cls")]
    text = textwrap.dedent("".join(lines))
    try:
        ast.parse(text)
    except SyntaxError:  # a multi-line string that is not indented
        return None
    return Function(
        module, name, text, ast.get_docstring(node) or "", tuple(names), tuple(sorted(stored))
    )


def _is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _code(source: str) -> str:
    return f"```python\n{source.rstrip()}\n```\n"


# -- kinds of tasks -------------------------------------------------------------------------------


def edits(old: dict[tuple[str, str], Function], new: dict[tuple[str, str], Function]) -> list[Task]:
    """Return a task for each function that changed by less than half between the releases."""
    found = []
    for key, function in new.items():
        before = old.get(key)
        if before is None or before.source == function.source:
            continue
        a, b = before.source.splitlines(), function.source.splitlines()
        if difflib.SequenceMatcher(None, a, b, autojunk=False).ratio() >= 0.5:
            prompt = f"Update this function of {key[0]} to the new release.\n"
            found.append(Task(prompt + _code(before.source), _code(function.source)))
    return found


def renames(new: dict[tuple[str, str], Function]) -> list[Task]:
    """Return tasks that rename two variables of a function."""
    found = []
    for function in new.values():
        names = [name for name in function.variables if len(name) > 2][:2]
        if len(names) == 2:
            source, wanted = function.source, []
            for name in names:
                wanted.append(f"{name} to {name}_value")
                source = re.sub(rf"(?<![\w.]){name}\b", f"{name}_value", source)
            prompt = f"Rename {' and '.join(wanted)} in this function.\n"
            found.append(Task(prompt + _code(function.source), _code(source)))
    return found


def comments(new: dict[tuple[str, str], Function]) -> list[Task]:
    """Return tasks that add the real comments to a function without them."""
    found = []
    for function in new.values():
        without, n_comments = _without_comments(function.source)
        if n_comments >= 3:
            prompt = "Add comments to this function.\n" + _code(without)
            found.append(Task(prompt, _code(function.source)))
    return found


def _without_comments(source: str) -> tuple[str, int]:
    """Return a source without its lines that are comments, and their number."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = source.splitlines(keepends=True)
    dropped = {
        token.start[0]
        for token in tokens
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1].lstrip().startswith("#")
    }
    return "".join(x for i, x in enumerate(lines, 1) if i not in dropped), len(dropped)


def new_code(
    old: dict[tuple[str, str], Function], new: dict[tuple[str, str], Function]
) -> list[Task]:
    """Return tasks that write a function, from signature and docstring, that the old one lacks."""
    names = {name.rpartition(".")[2] for _, name in old}
    found = []
    for (_, name), function in new.items():
        if name.rpartition(".")[2] not in names and function.docstring:
            wanted = f"{function.signature.strip()}\n{function.docstring}\n"
            prompt = "Write this function.\n" + wanted
            found.append(Task(prompt, _code(function.source)))
    return found


def tables(new: dict[tuple[str, str], Function]) -> list[Task]:
    """Return tasks that turn a table of the functions of a module into JSON."""
    modules: dict[str, list[Function]] = {}
    for function in new.values():
        if function.docstring:
            modules.setdefault(function.module, []).append(function)
    found = []
    for module, members in modules.items():
        if len(members) < 6:
            continue
        rows = [
            {
                "name": f.name,
                "arguments": ", ".join(f.arguments),
                "lines": f.source.count("\n"),
                "summary": f.docstring.splitlines()[0],
            }
            for f in members[:16]
        ]
        head = f"| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}\n"
        body = "".join(f"| {' | '.join(map(str, row.values()))} |\n" for row in rows)
        prompt = f"Turn this table of the functions of {module} into JSON.\n{head}{body}"
        found.append(Task(prompt, json.dumps(rows, indent=2) + "\n"))
    return found


def pages(library: Path) -> list[list[str]]:
    """Return the pages of the language reference, as lists of paragraphs of prose."""
    topics = runpy.run_path(str(library / "pydoc_data" / "topics.py"))["topics"]
    found = []
    for text in topics.values():
        paragraphs = [" ".join(p.split()) for p in text.split("\n\n") if re.match(r"[A-Z]", p)]
        prose = [p for p in paragraphs if len(p) > 120 and "::=" not in p and p[-1] in ".:"]
        if len(prose) >= 4:
            found.append(prose[:16])
    return found


def _first_sentence(paragraph: str) -> str:
    return re.split(r"(?<=[.:]) (?=[A-Z])", paragraph)[0]


def summaries(reference: list[list[str]]) -> list[Task]:
    """Return tasks whose answer is the first sentence of every second paragraph of a page."""
    found = []
    for page in reference:
        answer = "".join(f"- {_first_sentence(p)}\n" for p in page[::2])
        prompt = "Summarise this text in its own words, as a list.\n\n" + "\n\n".join(page) + "\n"
        found.append(Task(prompt, answer))
    return found


def quotes(reference: list[list[str]]) -> list[Task]:
    """Return tasks whose answer is prose of another page, with sentences of the page quoted."""
    found = []
    for page, other in zip(reference, reference[1:] + reference[:1], strict=True):
        quoted = [_first_sentence(p) for p in page[::3]]
        answer = "".join(f'{p}\n\n"{q}"\n\n' for p, q in zip(other, quoted, strict=False))
        prompt = "Write about this text, and quote it.\n\n" + "\n\n".join(page) + "\n"
        found.append(Task(prompt, answer))
    return found


def prose(reference: list[list[str]]) -> list[Task]:
    """Return tasks whose answer is a page of which the prompt has the first sentence only."""
    return [
        Task(f"Continue: {_first_sentence(page[0])}\n", "\n\n".join(page[1:]) + "\n")
        for page in reference
    ]


def tasks(old: Path, new: Path, seed: int = 0) -> dict[str, list[Task]]:
    """Return a random selection of tasks for each kind, from two standard libraries."""
    before, after = functions(old), functions(new)
    reference = pages(new)
    kinds: dict[str, tuple[int, Callable[[], list[Task]]]] = {
        "real edits": (104, lambda: edits(before, after)),
        "rename": (38, lambda: renames(after)),
        "comments added": (29, lambda: comments(after)),
        "extractive summary": (20, lambda: summaries(reference)),
        "table to JSON": (12, lambda: tables(after)),
        "new code": (29, lambda: new_code(before, after)),
        "quotes in new prose": (20, lambda: quotes(reference)),
        "new prose": (20, lambda: prose(reference)),
    }
    rng = random.Random(seed)
    selected = {}
    for kind, (count, make) in kinds.items():
        found = make()
        selected[kind] = rng.sample(found, min(count, len(found)))
    return selected


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options from which `encoded` makes the tasks."""
    parser.add_argument("--old", type=Path, required=True, help="library of the older Python")
    parser.add_argument("--new", type=Path, required=True, help="library of the newer Python")
    parser.add_argument("--tokenizer", default=EMBEDDED_MODEL, help="GGUF file with the tokenizer")
    parser.add_argument("--seed", type=int, default=0, help="which tasks are selected")


def encoded(args: argparse.Namespace) -> dict[str, list[tuple[list[int], list[int]]]]:
    """Return the token ids of prompt and answer of every task, by kind. The answers end."""
    tokenizer = Tokenizer.from_gguf(args.tokenizer)
    end = sorted(tokenizer.eog_ids)[:1]
    return {
        kind: [
            (
                tokenizer.encode(task.prompt),
                [*tokenizer.encode(task.answer, add_special=False), *end],
            )
            for task in selected
        ]
        for kind, selected in tasks(args.old, args.new, args.seed).items()
    }
