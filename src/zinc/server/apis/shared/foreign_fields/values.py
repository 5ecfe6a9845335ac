"""Values of foreign fields that are more than another name: what their members become."""

from __future__ import annotations

import json
from typing import Any, Literal, TypeVar

from pydantic import Field

from zinc.server.apis.shared.foreign_fields.rules import Adoption, as_sent
from zinc.server.errors import ApiError, invalid, unsupported
from zinc.server.http.body import Fields, Json, nearest, parse

Model = TypeVar("Model", bound=Fields)

# The names that the endpoints give to one thing.
LIMIT = ("max_tokens", "max_output_tokens", "n_predict")
STOP = ("stop", "stop_sequences")
_UNLIMITED = (-1, -2)  # of llama.cpp and Ollama


class _Reasoning(Fields):
    effort: str | None = None
    max_tokens: int | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    summary: str | None = None
    generate_summary: str | None = None


class _Thinking(Fields):
    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: int | None = None
    clear_thinking: bool | None = None
    display: str | None = None


class _StructuredOutputs(Fields):
    json_: Any = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None
    disable_any_whitespace: bool | None = None
    disable_fallback: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None
    backend: str | None = None


def _members(kind: type[Model], name: str, value: Json) -> Model:
    """Return the value of an object-valued field, checked. Raises ApiError that names a member."""
    if not isinstance(value, dict):
        raise invalid(name, f"{name} is not valid", "it must be an object")
    try:
        return parse(kind, value)
    except ApiError as error:
        if error.param is None:
            raise invalid(name, f"{name} is not valid", error.why) from None
        raise as_sent(error, {error.param: f"{name}.{error.param}"}) from None


def reasoning(adoption: Adoption, name: str, value: Json) -> None:
    """Map OpenRouter's `reasoning`."""
    given = _members(_Reasoning, name, value)
    if given.effort is not None:
        adoption.put(f"{name}.effort", "reasoning_effort", given.effort)
    if given.max_tokens is not None:
        adoption.put(f"{name}.max_tokens", "thinking_budget", given.max_tokens)
    enabled = given.enabled
    if enabled is None and given.max_tokens is not None and given.effort is None:
        enabled = True
    if enabled is not None:
        adoption.put(f"{name}.enabled", "enable_thinking", enabled)
    if given.exclude is not None:
        adoption.put(f"{name}.exclude", "include_reasoning", not given.exclude)


def thinking(adoption: Adoption, name: str, value: Json) -> None:
    """Map the `thinking` of Anthropic and DeepSeek."""
    given = _members(_Thinking, name, value)
    if given.type != "auto":
        adoption.put(f"{name}.type", "enable_thinking", given.type != "disabled")
    if given.budget_tokens is not None:
        adoption.put(f"{name}.budget_tokens", "thinking_budget", given.budget_tokens)


def think(adoption: Adoption, name: str, value: Json) -> None:
    """Map Ollama's `think`, a switch or a level."""
    if isinstance(value, bool):
        adoption.put(name, "enable_thinking", value)
    else:
        adoption.put(name, "reasoning_effort", value)


def documents(adoption: Adoption, name: str, value: Json) -> None:
    """Hand documents to the chat template."""
    given = adoption.body.get("chat_template_kwargs")
    if isinstance(given, dict | None) and "chat_template_kwargs" in adoption.own:
        adoption.body["chat_template_kwargs"] = {**(given or {}), "documents": value}
    else:
        adoption.put(name, "chat_template_kwargs", value)


def json_form(adoption: Adoption, name: str, value: Json) -> None:
    """Map Ollama's `format`: a schema, or the word json."""
    adoption.put(name, "json_schema", {"type": "object"} if value in ("json", "") else value)


def choice(adoption: Adoption, name: str, value: Json) -> None:
    """Hold the answer to one of several texts."""
    if not isinstance(value, list) or not value or not all(isinstance(v, str) and v for v in value):
        raise invalid(name, f"{name} is not valid", "it must be a list of texts that are not empty")
    texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in value)
    adoption.put(name, "grammar", f"start: {texts}")


def structured_outputs(adoption: Adoption, name: str, value: Json) -> None:
    """Map vLLM's `structured_outputs`."""
    given = _members(_StructuredOutputs, name, value)
    if given.structural_tag is not None:
        raise unsupported(f"{name}.structural_tag", "only whole answers are held to a form")
    if given.json_ is not None:
        adoption.put(f"{name}.json", "json_schema", given.json_)
    if given.json_object:
        adoption.put(f"{name}.json_object", "json_schema", {"type": "object"})
    if given.regex is not None:
        adoption.put(f"{name}.regex", "regex", given.regex)
    if given.grammar is not None:
        adoption.put(f"{name}.grammar", "grammar", given.grammar)
    if given.choice is not None:
        choice(adoption, f"{name}.choice", given.choice)


def limit(adoption: Adoption, name: str, value: Json) -> None:
    """Map a limit of tokens; -1 and -2 are none."""
    if isinstance(value, bool) or value not in _UNLIMITED:
        adoption.put(name, LIMIT, value)


def budget(adoption: Adoption, name: str, value: Json) -> None:
    """Map a limit of reasoning; -1 is none."""
    if isinstance(value, bool) or value != -1:
        adoption.put(name, "thinking_budget", value)


def repetition_penalty(adoption: Adoption, name: str, value: Json) -> None:
    """Map a penalty that looks at prompt and answer as a whole."""
    adoption.put(name, "repeat_penalty", value)
    if adoption.body.get("repeat_last_n") is None and "repeat_last_n" in adoption.own:
        adoption.body["repeat_last_n"] = -1  # over prompt and answer, as its servers do


_OPTIONS_SAME = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "repeat_penalty", "repeat_last_n",
    "presence_penalty", "frequency_penalty", "seed", "mirostat", "mirostat_tau", "mirostat_eta",
)  # fmt: skip
_OPTIONS_IGNORED = (
    "num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "use_mmap",
    "use_mlock", "low_vram", "f16_kv", "vocab_only", "logits_all", "embedding_only",
    "penalize_newline", "tfs_z", "rope_frequency_base", "rope_frequency_scale",
)  # fmt: skip


def options(adoption: Adoption, name: str, value: Json) -> None:
    """Map Ollama's `options`."""
    if not isinstance(value, dict):
        raise invalid(name, f"{name} is not valid", "it must be an object")
    for key, each in value.items():
        source = f"{name}.{key[:80]}"
        if each is None:
            continue
        if key in _OPTIONS_SAME:
            adoption.put(source, key, each)
        elif key == "num_predict":
            limit(adoption, source, each)
        elif key == "stop":
            adoption.put(source, STOP, each)
        elif key in _OPTIONS_IGNORED:
            adoption.ignored[source] = "`zinc serve` decides how a model is loaded"
        else:
            known = (*_OPTIONS_SAME, *_OPTIONS_IGNORED, "num_predict", "stop")
            near = nearest(key, known)
            hint = f"did you mean {name}.{near}?" if near else "leave it out"
            raise invalid(source, f"there is no field {source}", "Ollama has no such option", hint)


def output_format(adoption: Adoption, name: str, value: Json) -> None:
    """Map the older name of Anthropic's `output_config.format`."""
    given = adoption.body.get("output_config")
    if isinstance(given, dict) and "format" not in given:
        adoption.body["output_config"] = {**given, "format": value}
    else:
        adoption.put(name, "output_config", {"format": value})


def do_sample(adoption: Adoption, name: str, value: Json) -> None:
    """Draw greedily when `value` is false, whatever the temperature."""
    if value is False and "temperature" in adoption.own:
        adoption.body["temperature"] = 0.0


def usage(adoption: Adoption, name: str, value: Json) -> None:
    """Ask a stream for its usage, which answers that are not streamed always tell."""
    wanted = isinstance(value, dict) and value.get("include") is True
    if wanted and adoption.body.get("stream") is True and "stream_options" in adoption.own:
        given = adoption.body.get("stream_options")
        options = given if isinstance(given, dict) else {}
        adoption.body["stream_options"] = {**options, "include_usage": True}
