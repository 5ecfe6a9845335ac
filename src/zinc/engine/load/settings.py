"""Settings that belong to a model: its system prompt, first messages, sampling and context.

They come from a Modelfile, or from a request to Ollama's /api/create. A request, and an option of
a command, overrides them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from zinc.core.dataclass import dataclass
from zinc.core.errors import RequestError, ZincError
from zinc.engine.sampling.params import SamplingParams
from zinc.formats.gguf import GGUFFile
from zinc.hub.modelfile import Modelfile, Parameter, is_modelfile, read
from zinc.hub.names import FileName, parse
from zinc.hub.resolve import base_file

Message = Mapping[str, Any]

# Parameters of Ollama that have no effect in zinc, and why.
_WITHOUT_EFFECT = {
    "num_gpu": "--gpu-layers decides",
    "num_thread": "--threads decides",
    **dict.fromkeys(
        ("num_keep", "num_batch", "num_gqa", "main_gpu", "numa", "low_vram", "f16_kv", "logits_all",
         "vocab_only", "use_mmap", "use_mlock", "penalize_newline", "draft_num_predict", "tfs_z"),
        "zinc has no such setting",
    ),
}  # fmt: skip
_SAMPLERS = {
    each.name: type(each.default)
    for each in fields(SamplingParams)
    if type(each.default) in (int, float)
} | {"seed": int}
_UNLIMITED = (-1, -2)
_MARKER = re.compile(r"<[|｜][^|｜<>\n]+[|｜]>|<(?:start|end)_of_turn>|\[/?INST\]|### \w+")


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Settings of a model.

    context: tokens; None is the default. system: the system prompt of conversations without one
    of their own. messages: the beginning of every conversation. sampling: arguments of
    `SamplingParams` for requests that do not give them. notes: a sentence for each setting that has
    no effect. lora: files of LoRA adapters, unless a load names others.
    """

    context: int | None = None
    system: str = ""
    messages: tuple[Message, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    lora: tuple[Path, ...] = ()

    def conversation(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return a conversation with the model's system prompt and first messages before it."""
        has_system = bool(messages) and messages[0].get("role") in ("system", "developer")
        if not self.messages and (has_system or not self.system):
            return messages
        n_system = int(has_system)
        own = [{"role": "system", "content": self.system}] if self.system else []
        head = messages[:1] if has_system else own
        return [*head, *self.messages, *messages[n_system:]]


NO_SETTINGS = ModelSettings()


def settings_of(model: str | os.PathLike[str] | None) -> ModelSettings:
    """Return the settings of a Modelfile; none if `model` is any other name or path.

    Raises a ZincError if the Modelfile is not valid, or its model is missing.
    """
    if model is None:
        return NO_SETTINGS
    name = parse(os.fspath(model))
    if not isinstance(name, FileName) or not is_modelfile(name.path):
        return NO_SETTINGS
    contents = read(name.path)
    path = base_file(contents, name.path)
    return with_modelfile(NO_SETTINGS, contents, path, name.path.parent)


def with_modelfile(
    base: ModelSettings, given: Modelfile, path: Path, folder: Path | None = None
) -> ModelSettings:
    """Return the settings `base` of the model in the file `path`, changed as `given` says.

    folder: of the Modelfile; None if it comes from a client, who must not name files. Raises
    RequestError for a parameter that is unknown or out of range.
    """
    if given.adapters and folder is None:
        raise RequestError(
            "a request cannot name adapters",
            "they are files of the server's machine",
            "start the server with {lora}, or with a Modelfile",
        )
    changed = _with_parameters(base, given.parameters)
    rows = [{"role": role, "content": text} for role, text in given.messages]
    messages = tuple(row for row in rows if row["role"] != "system")
    systems = [row["content"] for row in rows if row["role"] == "system"]
    if given.system is not None:
        systems.insert(0, given.system)
    notes = changed.notes
    if given.template and not is_own_template(given.template, path):
        notes = (
            *notes,
            f"{given.template_where}: the template is not used; the model file's own is",
        )
    return replace(
        changed,
        system="\n\n".join(systems) if systems else base.system,
        messages=messages or base.messages,
        notes=notes,
        lora=tuple(folder / Path(x).expanduser() for x in given.adapters) if folder else base.lora,
    )


def modelfile_of(settings: ModelSettings, base: str) -> Modelfile:
    """Return the Modelfile that gives the model `base` these settings."""
    values: dict[str, Any] = {**settings.sampling}
    if settings.context is not None:
        values["num_ctx"] = settings.context
    if "max_tokens" in values:
        limit = values.pop("max_tokens")
        values["num_predict"] = _UNLIMITED[0] if limit is None else limit
    return Modelfile(
        base,
        [Parameter(name, value, "") for name, value in values.items()],
        settings.system or None,
        [(str(each["role"]), str(each["content"])) for each in settings.messages],
    )


def _with_parameters(base: ModelSettings, parameters: Iterable[Parameter]) -> ModelSettings:
    context, sampling, notes = base.context, dict(base.sampling), list[str]()
    stops: list[str] = []
    for each in parameters:
        match each.name:
            case "num_ctx":
                context = _number(each, int)
                if context < 1:
                    raise RequestError(f"{each.where}: num_ctx is {context}", "it must be positive")
            case "num_predict":
                limit = _number(each, int)
                sampling["max_tokens"] = None if limit in _UNLIMITED else limit
            case "stop":
                values = each.value if isinstance(each.value, list) else [each.value]
                stops += [str(value) for value in values]
                sampling["stop"] = tuple(stops)
            case name if name in _SAMPLERS:
                sampling[name] = _number(each, _SAMPLERS[name])
            case name if name in _WITHOUT_EFFECT:
                notes.append(f"{each.where}: {name} has no effect: {_WITHOUT_EFFECT[name]}")
            case name:
                known = (*_SAMPLERS, *_WITHOUT_EFFECT, "num_ctx", "num_predict", "stop")
                near = get_close_matches(name, known, 1)
                hint = f"write {near[0]}" if near else f"choose one of {', '.join(sorted(known))}"
                raise RequestError(f"{each.where}: there is no parameter {name[:40]}", "", hint)
        _check(sampling, each)
    return replace(base, context=context, sampling=sampling, notes=tuple(notes))


def _number(parameter: Parameter, kind: type) -> Any:
    """Return the value of a parameter as an int or a float. Raises RequestError."""
    value = parameter.value
    try:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            found = kind(value)
            if kind is float or isinstance(value, str) or found == value:
                return found
    except (ValueError, OverflowError):
        pass
    what = "a whole number" if kind is int else "a number"
    raise RequestError(
        f"{parameter.where}: {parameter.name} is {str(value)[:40]!r}", f"it must be {what}"
    )


def _check(sampling: Mapping[str, Any], parameter: Parameter) -> None:
    try:
        SamplingParams(**sampling)
    except RequestError as error:
        raise RequestError(f"{parameter.where}: {error.what}", error.why, error.hint) from None


def is_own_template(template: str, path: Path) -> bool:
    """Return whether a Go template writes conversations as the chat template of a model file does.

    They are compared by their control tokens, such as <|im_start|>: each one of the Go template
    must be in the chat template, or begin or end texts of the model.
    """
    markers = set(_MARKER.findall(re.sub(r"\{\{.*?\}\}", "", template, flags=re.DOTALL)))
    try:
        with GGUFFile.open(path) as file:
            metadata = dict(file.metadata)
    except ZincError:
        return True  # loading the model reports the error
    source, tokens = metadata.get("tokenizer.chat_template"), metadata.get("tokenizer.ggml.tokens")
    if not isinstance(source, str) or not isinstance(tokens, Sequence):
        return False
    ids = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")]
    ends = {tokens[i] for i in ids if isinstance(i, int) and 0 <= i < len(tokens)}
    return bool(markers) and all(each in source or each in ends for each in markers)
