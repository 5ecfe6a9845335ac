"""The options and commands of llama.cpp, Ollama and vLLM.

`translate` rewrites a command line before it is parsed:

- It renames options that zinc has under another name.
- It removes options that have no effect in zinc, and prints a note.
- It keeps options for features that zinc lacks, so that the parser refuses them.
- It does not change options that the command has under the same name.

`ls` is a command, as in Ollama. For other commands that zinc lacks, `instead` says what to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import field

from zinc.cli.argtypes import UsageError
from zinc.core.dataclass import dataclass

ALIASES = {"ls": "list"}
_INSTEAD = {
    **dict.fromkeys(("remove", "delete"), "`zinc rm MODEL` deletes a model"),
    "download": "`zinc pull MODEL` downloads a model",
    "models": "`zinc list` lists the models",
    "info": "`zinc show MODEL` describes a model",
    **dict.fromkeys(("create", "cp"), "a Modelfile is a model: `zinc run ./Modelfile`"),
    "push": "zinc downloads models, but uploads none",
    "stop": "`zinc serve --ttl SECONDS` unloads models that are idle",
    "version": "`zinc --version` prints the version",
    **dict.fromkeys(("quantize", "convert"), "zinc runs GGUF files as they are"),
    **dict.fromkeys(
        ("embed", "embedding", "rerank"), "`zinc serve` has endpoints for it, `LLM` has methods"
    ),
}
POSITIONAL = ""  # in place of an option's name: the value is an argument without an option


@dataclass(frozen=True, slots=True)
class Foreign:
    """An option of another program.

    own: the option of zinc that takes its place; None if it has no effect, for the reason `why`.
    values: how many values it has. choices: if given, it has one value if the next word is one of
    these, else none. repeats: it can be given several times.
    """

    own: str | None = None
    why: str = ""
    values: int = 1
    choices: Collection[str] = ()
    repeats: bool = False


def _flag(why: str) -> Foreign:
    return Foreign(None, why, values=0)


_ALWAYS = "flash attention is always used"
_PROMPTS = "the size of prompt chunks is chosen by zinc"
_TEMPLATES = "chat templates are always used, unless --raw is given"
_LOADING = "weights are read into memory that zinc manages"
_STREAMS = "as many sequences run at a time as memory allows"
_ENDPOINTS = "the server always has all endpoints that the model supports"
_TOOLS = "tool calls are always parsed, in the format of the chat template"
_DRAFT_LENGTHS = (
    "--draft-max",
    "--draft-n",
    "--draft-min",
    "--draft-n-min",
    "--draft-p-min",
    "--spec-draft-n-max",
    "--spec-draft-n-min",
    "--spec-draft-p-min",
)
_SWITCH = ("on", "off", "auto", "0", "1")

OPTIONS: dict[str, Foreign] = {
    **dict.fromkeys(("-p", "--prompt"), Foreign(POSITIONAL)),
    **dict.fromkeys(("-hf", "-hfr", "--hf-repo"), Foreign("--model")),
    **dict.fromkeys(("--ctx-size", "--num-ctx", "--max-model-len"), Foreign("--context")),
    "--served-model-name": Foreign("--alias"),
    **dict.fromkeys(("--n-predict", "--predict", "--num-predict"), Foreign("--max-tokens")),
    **dict.fromkeys(("--n-gpu-layers", "--gpu_layers"), Foreign("--gpu-layers")),
    **dict.fromkeys(("-ncmoe", "--n-cpu-moe"), Foreign("--cpu-moe")),
    **dict.fromkeys(("-sys", "--system-prompt"), Foreign("--system")),
    **dict.fromkeys(("-ctk", "--cache-type-k"), Foreign("--kv-dtype")),
    **dict.fromkeys(("-ctv", "--cache-type-v"), Foreign("--kv-dtype")),
    **dict.fromkeys(("-md", "--model-draft", "--spec-draft-model"), Foreign("--draft")),
    "-s": Foreign("--seed"),
    **dict.fromkeys(("-r", "--reverse-prompt"), Foreign("--stop", repeats=True)),
    "--chat-template-file": Foreign("--chat-template"),
    "-dev": Foreign("--device"),
    **dict.fromkeys(("-ts", "--tensor-split"), Foreign("--shares")),
    **dict.fromkeys(("-sm", "--split-mode"), Foreign("--split")),
    "--verbose": Foreign("--stats", values=0),
    "--repetition-penalty": Foreign("--repeat-penalty"),
    "--keepalive": Foreign("--ttl"),
    "-to": Foreign("--grace"),
    **dict.fromkeys(("-fa", "--flash-attn"), Foreign(None, _ALWAYS, choices=_SWITCH)),
    **dict.fromkeys(("-b", "--batch-size", "-ub", "--ubatch-size"), Foreign(None, _PROMPTS)),
    **dict.fromkeys(("-tb", "--threads-batch"), Foreign(None, "--threads is for all work")),
    **dict.fromkeys(("-np", "--parallel"), Foreign(None, _STREAMS)),
    **dict.fromkeys(_DRAFT_LENGTHS, Foreign(None, "the engine measures how long drafts should be")),
    **dict.fromkeys(("-cb", "--cont-batching"), _flag(_STREAMS)),
    **dict.fromkeys(("--jinja", "-cnv", "--conversation"), _flag(_TEMPLATES)),
    **dict.fromkeys(("--no-mmap", "--mmap", "--mlock"), _flag(_LOADING)),
    **dict.fromkeys(("--metrics", "--slots", "--props"), _flag(_ENDPOINTS)),
    **dict.fromkeys(("--embedding", "--embeddings", "--rerank", "--reranking"), _flag(_ENDPOINTS)),
    "--tool-call-parser": Foreign(None, _TOOLS),
    "--enable-auto-tool-choice": _flag(_TOOLS),
    "--enable-prefix-caching": _flag("the prefix cache is on by default"),
    "--no-context-shift": _flag("context shift is off unless a request asks for it"),
    "--no-warmup": _flag("kernels are compiled when they are first needed"),
    "--no-display-prompt": _flag("the prompt is never printed"),
    "--simple-io": _flag("output to a pipe is plain text"),
    "--log-disable": _flag("a command logs nothing unless ZINC_LOG is set"),
    **dict.fromkeys(("-e", "--escape"), _flag("write line breaks as your shell does")),
}


@dataclass(slots=True)
class Translated:
    """A command line in zinc's words, and notes about options that have no effect."""

    words: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def instead(command: str) -> str:
    """Return what to do in place of another program's `command`, or nothing."""
    return _INSTEAD.get(command, "")


def translate(words: Sequence[str], known: Collection[str]) -> Translated:
    """Translate the words after a command's name.

    known: the options that the command has. Raises UsageError for keys and values of the cache in
    different types, and for an option without its value.
    """
    found = Translated()
    positional: list[str] = []
    given: dict[str, tuple[str, str]] = {}  # own option: the name and value that set it
    left = deque(words)
    while left:
        word = left.popleft()
        if word == "--":
            found.words += [word, *left]
            break
        name, equals, value = word.partition("=")
        option = OPTIONS.get(name)
        if option is None or name in known or (option.own and option.own not in known):
            found.words.append(word)
            continue
        values = [value] if equals else _take(name, option, left)
        if option.own is None:
            found.notes.append(f"{name} has no effect: {option.why}")
        elif option.own == POSITIONAL:
            positional += values
        elif option.repeats or not values:
            found.words += [option.own, *values]
        else:
            _check(given, option.own, name, values[0])
            if given.setdefault(option.own, (name, values[0])) == (name, values[0]):
                found.words += [option.own, *values]
    found.words[_end(found.words) : _end(found.words)] = positional
    return found


def _end(words: Sequence[str]) -> int:
    """Return where options and arguments end: at `--`, or after the last word."""
    return words.index("--") if "--" in words else len(words)


def _take(name: str, option: Foreign, left: deque[str]) -> list[str]:
    """Remove the values of an option from the words after it, and return them."""
    n = option.values
    if option.choices:
        n = int(bool(left) and left[0] in option.choices)
    if len(left) < n:
        raise UsageError(f"{name} needs a value")
    return [left.popleft() for _ in range(n)]


def _check(given: dict[str, tuple[str, str]], own: str, name: str, value: str) -> None:
    """Raise UsageError if two names set one option to different values."""
    before, other = given.get(own, (name, value))
    if other != value:
        raise UsageError(f"{before} is {other} and {name} is {value}: {own} sets both")
