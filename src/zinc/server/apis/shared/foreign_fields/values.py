"""Translation of foreign fields whose values need more than a new name, such as objects."""

from __future__ import annotations

import json
from typing import Any, Literal, TypeVar

from pydantic import Field

from zinc.server.apis.shared.foreign_fields.rules import TranslatedBody, as_sent
from zinc.server.errors import ApiError, invalid, unsupported
from zinc.server.http.body import Json
from zinc.server.http.fields import Fields, nearest, parse

Model = TypeVar("Model", bound=Fields)

# Names of the same setting at different endpoints.
LIMIT = ("max_tokens", "max_output_tokens", "n_predict")
STOP = ("stop", "stop_sequences")
_UNLIMITED = (-1, -2)  # llama.cpp and Ollama
# Why settings of speculation have no effect.
MEASURED = "the engine measures how many drafted tokens a step should verify"
CHOSEN = "`zinc serve --speculate` chooses the source of drafts"


class _Reasoning(Fields):
    """OpenRouter's `reasoning` object."""

    effort: str | None = None
    max_tokens: int | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    summary: str | None = None
    generate_summary: str | None = None


class _Thinking(Fields):
    """The `thinking` object of Anthropic and DeepSeek."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: int | None = None
    clear_thinking: bool | None = None
    display: str | None = None


class _StructuredOutputs(Fields):
    """vLLM's `structured_outputs` object."""

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
    """Return the object `value` of the field `name` as `kind`.

    Raises ApiError that names the member that is not valid.
    """
    if not isinstance(value, dict):
        raise invalid(name, f"{name} is not valid", "it must be an object")
    try:
        return parse(kind, value)
    except ApiError as error:
        if error.param is None:
            raise invalid(name, f"{name} is not valid", error.why) from None
        raise as_sent(error, {error.param: f"{name}.{error.param}"}) from None


def reasoning(body: TranslatedBody, name: str, value: Json) -> None:
    """Translate OpenRouter's `reasoning` object."""
    given = _members(_Reasoning, name, value)
    if given.effort is not None:
        body.put(f"{name}.effort", "reasoning_effort", given.effort)
    if given.max_tokens is not None:
        body.put(f"{name}.max_tokens", "thinking_budget", given.max_tokens)
    enabled = given.enabled
    if enabled is None and given.max_tokens is not None and given.effort is None:
        enabled = True
    if enabled is not None:
        body.put(f"{name}.enabled", "enable_thinking", enabled)
    if given.exclude is not None:
        body.put(f"{name}.exclude", "include_reasoning", not given.exclude)


def thinking(body: TranslatedBody, name: str, value: Json) -> None:
    """Translate the `thinking` object of Anthropic and DeepSeek."""
    given = _members(_Thinking, name, value)
    if given.type != "auto":
        body.put(f"{name}.type", "enable_thinking", given.type != "disabled")
    if given.budget_tokens is not None:
        body.put(f"{name}.budget_tokens", "thinking_budget", given.budget_tokens)


def think(body: TranslatedBody, name: str, value: Json) -> None:
    """Translate Ollama's `think`, a boolean or a level of effort."""
    if isinstance(value, bool):
        body.put(name, "enable_thinking", value)
    else:
        body.put(name, "reasoning_effort", value)


def documents(body: TranslatedBody, name: str, value: Json) -> None:
    """Pass `documents` to the chat template."""
    given = body.fields.get("chat_template_kwargs")
    if isinstance(given, dict | None) and "chat_template_kwargs" in body.own:
        body.fields["chat_template_kwargs"] = {**(given or {}), "documents": value}
    else:
        body.put(name, "chat_template_kwargs", value)


def json_form(body: TranslatedBody, name: str, value: Json) -> None:
    """Translate Ollama's `format`: a JSON schema, "json", or "" for none."""
    if value != "":  # older clients always send the field
        body.put(name, "json_schema", {"type": "object"} if value == "json" else value)


def choice(body: TranslatedBody, name: str, value: Json) -> None:
    """Translate a list of texts to a grammar that allows one of them."""
    if not isinstance(value, list) or not value or not all(isinstance(v, str) and v for v in value):
        raise invalid(name, f"{name} is not valid", "it must be a list of non-empty texts")
    texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in value)
    body.put(name, "grammar", f"start: {texts}")


def structured_outputs(body: TranslatedBody, name: str, value: Json) -> None:
    """Translate vLLM's `structured_outputs` object."""
    given = _members(_StructuredOutputs, name, value)
    if given.structural_tag is not None:
        raise unsupported(f"{name}.structural_tag", "a format applies to the whole answer")
    if given.json_ is not None:
        body.put(f"{name}.json", "json_schema", given.json_)
    if given.json_object:
        body.put(f"{name}.json_object", "json_schema", {"type": "object"})
    if given.regex is not None:
        body.put(f"{name}.regex", "regex", given.regex)
    if given.grammar is not None:
        body.put(f"{name}.grammar", "grammar", given.grammar)
    if given.choice is not None:
        choice(body, f"{name}.choice", given.choice)


def limit(body: TranslatedBody, name: str, value: Json) -> None:
    """Translate a token limit; -1 and -2 mean no limit."""
    if isinstance(value, bool) or value not in _UNLIMITED:
        body.put(name, LIMIT, value)


def budget(body: TranslatedBody, name: str, value: Json) -> None:
    """Translate a token limit for reasoning; -1 means no limit."""
    if isinstance(value, bool) or value != -1:
        body.put(name, "thinking_budget", value)


def repetition_penalty(body: TranslatedBody, name: str, value: Json) -> None:
    """Translate a repetition penalty that applies to the whole prompt and answer."""
    body.put(name, "repeat_penalty", value)
    if body.fields.get("repeat_last_n") is None and "repeat_last_n" in body.own:
        body.fields["repeat_last_n"] = -1  # the whole prompt and answer


def draft_limit(body: TranslatedBody, name: str, value: Json) -> None:
    """Translate the most tokens of a draft: 0 turns drafts off."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise invalid(name, f"{name} is not valid", "it must be a number of tokens")
    if value == 0:
        body.put(name, "speculate", False)
    else:
        body.ignored[name] = MEASURED


def draft_type(body: TranslatedBody, name: str, value: Json) -> None:
    """Translate the source of drafts: "none" turns drafts off."""
    if value == "none":
        body.put(name, "speculate", False)
    else:
        body.ignored[name] = CHOSEN


_OPTIONS_SAME = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "repeat_penalty", "repeat_last_n",
    "presence_penalty", "frequency_penalty", "seed", "mirostat", "mirostat_tau", "mirostat_eta",
)  # fmt: skip
_OPTIONS_IGNORED = (
    "num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "use_mmap",
    "use_mlock", "low_vram", "f16_kv", "vocab_only", "logits_all", "embedding_only",
    "penalize_newline", "tfs_z", "rope_frequency_base", "rope_frequency_scale",
)  # fmt: skip


def options(body: TranslatedBody, name: str, value: Json) -> None:
    """Translate Ollama's `options` object."""
    if not isinstance(value, dict):
        raise invalid(name, f"{name} is not valid", "it must be an object")
    for key, each in value.items():
        source = f"{name}.{key[:80]}"
        if each is None:
            continue
        if key in _OPTIONS_SAME:
            body.put(source, key, each)
        elif key == "num_predict":
            limit(body, source, each)
        elif key == "stop":
            body.put(source, STOP, each)
        elif key in _OPTIONS_IGNORED:
            body.ignored[source] = "options of `zinc serve` control how a model is loaded"
        else:
            # Ollama does the same, so clients send options of later versions.
            near = nearest(key, (*_OPTIONS_SAME, *_OPTIONS_IGNORED, "num_predict", "stop"))
            hint = f"; did you mean {name}.{near}?" if near else ""
            body.ignored[source] = f"there is no such option{hint}"


def output_format(body: TranslatedBody, name: str, value: Json) -> None:
    """Translate `output_format`, the older name of Anthropic's `output_config.format`."""
    given = body.fields.get("output_config")
    if isinstance(given, dict) and "format" not in given:
        body.fields["output_config"] = {**given, "format": value}
    else:
        body.put(name, "output_config", {"format": value})


def do_sample(body: TranslatedBody, name: str, value: Json) -> None:
    """Set the temperature to 0 if `do_sample` is false."""
    if value is False and "temperature" in body.own:
        body.fields["temperature"] = 0.0


def usage(body: TranslatedBody, name: str, value: Json) -> None:
    """Translate OpenRouter's `usage`: ask a stream to report token counts.

    Answers that are not streamed always report them.
    """
    wanted = isinstance(value, dict) and value.get("include") is True
    if wanted and body.fields.get("stream") is True and "stream_options" in body.own:
        given = body.fields.get("stream_options")
        options = given if isinstance(given, dict) else {}
        body.fields["stream_options"] = {**options, "include_usage": True}
