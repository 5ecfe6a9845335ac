"""Modelfiles: Ollama's text form of a model with settings of its own.

    FROM qwen3:8b                          a name, or a path relative to the Modelfile
    PARAMETER temperature 0.6
    PARAMETER stop "<|im_end|>"
    SYSTEM \"\"\"You are a pirate.\"\"\"        the value of an instruction may span lines
    MESSAGE user Hello
    MESSAGE assistant Ahoy!
    ADAPTER ./pirate.gguf                  a LoRA adapter, relative to the Modelfile

https://docs.ollama.com/modelfile. `parse` reads the text, `text_of` writes it;
`zinc.engine.load.settings` says what the parameters mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from difflib import get_close_matches
from pathlib import Path

from zinc.core.dataclass import dataclass
from zinc.core.errors import FormatError, next_step

_ROLES = ("system", "user", "assistant")
_UNUSED = ("LICENSE", "REQUIRES", "RENDERER", "PARSER")  # no effect on the answers of zinc
_INSTRUCTIONS = ("FROM", "PARAMETER", "SYSTEM", "MESSAGE", "TEMPLATE", "ADAPTER", *_UNUSED)
_QUOTES = ('"""', '"')
_MOST_BYTES = 1 << 20
_START_BYTES = 4096  # of a file that may be a Modelfile


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter with its value as text or as a JSON value; `where` names it in errors."""

    name: str
    value: object
    where: str


@dataclass(slots=True)
class Modelfile:
    """The contents of a Modelfile.

    base: the model after FROM. template: a Go template, or "". template_where: its place, for
    notes. messages: pairs of role and content. adapters: paths of LoRA adapters, relative to the
    Modelfile.
    """

    base: str = ""
    parameters: list[Parameter] = field(default_factory=list)
    system: str | None = None
    messages: list[tuple[str, str]] = field(default_factory=list)
    template: str = ""
    template_where: str = ""
    adapters: list[str] = field(default_factory=list)

    def values(self) -> Iterator[tuple[str, object]]:
        """Yield names and values of parameters; one with several values comes several times."""
        for each in self.parameters:
            values = each.value if isinstance(each.value, list | tuple) else [each.value]
            yield from ((each.name, value) for value in values)


def is_modelfile(path: Path) -> bool:
    """Return whether a file is a Modelfile: by its name, or because it begins with FROM."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            start = file.read(_START_BYTES)
    except OSError:
        return False  # opening it as a model reports the error
    if start.startswith(b"GGUF"):
        return False
    return named_like_modelfile(path.name) or _first_word(start) == b"FROM"


def named_like_modelfile(name: str) -> bool:
    """Return whether a file name or path is Modelfile, Modelfile.* or *.modelfile, in any case."""
    last = name.replace("\\", "/").rpartition("/")[2].lower()
    return last == "modelfile" or last.startswith("modelfile.") or last.endswith(".modelfile")


def _first_word(start: bytes) -> bytes:
    """Return the first word after comments, in capitals; empty if there is none."""
    for line in start.splitlines():
        words = line.split(None, 1)
        if words and not words[0].startswith(b"#"):
            return words[0].upper()
    return b""


def read(path: Path) -> Modelfile:
    """Return the contents of a Modelfile. Raises FormatError, UnsupportedError."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise FormatError(
            f"cannot open {path}", error.strerror or str(error), next_step(error)
        ) from None
    if len(data) > _MOST_BYTES:
        raise FormatError(f"{path} is not a Modelfile", "it has more than 1 MiB", "check the path")
    try:
        return parse(data.decode("utf-8-sig"), path.name)
    except UnicodeDecodeError:
        raise FormatError(
            f"{path} is not a Modelfile", "it is not UTF-8 text", "check the path"
        ) from None


def parse(text: str, name: str) -> Modelfile:
    """Return the contents of the Modelfile `text`, called `name` in errors.

    Raises FormatError, or UnsupportedError for an adapter. Both name the line.
    """
    found, lines, number = Modelfile(), text.splitlines(), 0
    while number < len(lines):
        line = lines[number].strip()
        number += 1
        if not line or line.startswith("#"):
            continue
        where = f"{name}, line {number}"
        word, rest = _split(line)
        instruction = word.upper()
        if instruction not in _INSTRUCTIONS:
            near = get_close_matches(instruction, _INSTRUCTIONS, 1)
            hint = f"write {near[0]}" if near else f"choose one of {', '.join(_INSTRUCTIONS)}"
            raise FormatError(f"{where}: {word[:40]} is not an instruction", "", hint)
        head, rest = _split(rest) if instruction in ("PARAMETER", "MESSAGE") else ("", rest)
        value, number = _value(rest, lines, number, where)
        if not value and instruction not in ("SYSTEM", "TEMPLATE", *_UNUSED):
            what = f"{' '.join((word, head)).strip()} has no value"
            raise FormatError(f"{where}: {what[:80]}", "", "write the value in the same line")
        _apply(found, instruction, head, value, where)
    if not found.base:
        raise FormatError(
            f"{name} names no model", "it has no FROM", "add a line such as FROM qwen3:8b"
        )
    return found


def _split(text: str) -> tuple[str, str]:
    """Return the first word of `text`, and the rest without leading blanks."""
    words = text.split(None, 1)
    return (words[0] if words else ""), (words[1] if len(words) > 1 else "")


def _value(rest: str, lines: Sequence[str], number: int, where: str) -> tuple[str, int]:
    """Return the value that begins with `rest`, and the number of lines up to its end."""
    quote = next((each for each in _QUOTES if rest.startswith(each)), None)
    if quote is None:
        return rest, number
    text = rest.removeprefix(quote)
    while not text.endswith(quote):
        if number == len(lines):
            raise FormatError(
                f"{where}: the text has no end", f"no later line ends in {quote}", f"add {quote}"
            )
        text += "\n" + lines[number].rstrip()
        number += 1
    return text.removesuffix(quote), number


def text_of(modelfile: Modelfile) -> str:
    """Return a Modelfile as text, which `parse` reads back."""
    lines = [f"FROM {modelfile.base}"]
    lines += [f"ADAPTER {_quoted(path)}" for path in modelfile.adapters]
    if modelfile.system is not None:
        lines.append(f"SYSTEM {_quoted(modelfile.system)}")
    lines += [f"PARAMETER {name} {_quoted(str(value))}" for name, value in modelfile.values()]
    lines += [f"MESSAGE {role} {_quoted(text)}" for role, text in modelfile.messages]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a value with quotes if it needs them."""
    is_plain = text == text.strip() and text and not text.startswith('"') and "\n" not in text
    return text if is_plain else f"{_QUOTES[0]}{text}{_QUOTES[0]}"


def _apply(found: Modelfile, instruction: str, head: str, value: str, where: str) -> None:
    """Add an instruction to `found`. Raises FormatError."""
    match instruction:
        case "FROM":
            if found.base:
                raise FormatError(f"{where}: there is a second FROM", "", "leave one of them out")
            found.base = value
        case "PARAMETER":
            found.parameters.append(Parameter(head.lower(), value, where))
        case "SYSTEM":
            found.system = value
        case "MESSAGE":
            if head.lower() not in _ROLES:
                hint = f"roles are {', '.join(_ROLES)}"
                raise FormatError(f"{where}: {head[:40]} is not a role", "", hint)
            found.messages.append((head.lower(), value))
        case "TEMPLATE":
            found.template, found.template_where = value, where
        case "ADAPTER":
            found.adapters.append(value)
