"""Request fields of other servers: what each one becomes here, or that it has no effect.

Clients send the fields of the server they were written for. `TABLE` lists the fields that known
servers and clients have and our endpoints do not: each is mapped to a field of ours, refused unless
it has a neutral value, or ignored with one line in the log. A name that no server has stays an
error (`body.parse`): a misspelt field would change nothing in silence. docs/server.md shows the
table; write it with `python -m zinc.server.foreign_fields docs/server.md`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field

from zinc.server.body import Fields, Json, nearest, own_names, parse
from zinc.server.errors import ApiError, invalid, unsupported
from zinc.server.fields import SamplingFields

log = logging.getLogger("zinc.server")

Model = TypeVar("Model", bound=Fields)

SOURCES = "zinc.field_sources"
"""The key of a request's scope under which the sources of its mapped fields are kept."""

# The names that the endpoints give to one thing.
_LIMIT = ("max_tokens", "max_output_tokens", "n_predict")
_STOP = ("stop", "stop_sequences")
_UNLIMITED = (-1, -2)  # of llama.cpp and Ollama


class Adoption:
    """A request body in which foreign fields have become fields of `kind`.

    `body` is the new body, `sources` maps a field of ours to the field that the client sent, and
    `ignored` maps fields without effect to the reason.
    """

    def __init__(self, kind: type[Fields], body: Mapping[str, Json]) -> None:
        self.own = own_names(kind)
        self.answers = issubclass(kind, SamplingFields)
        self.body = {name: value for name, value in body.items() if not self._is_foreign(name)}
        self.sources: dict[str, str] = {}
        self.ignored: dict[str, str] = {}
        for name, value in body.items():
            if self._is_foreign(name) and value is not None:
                TABLE[name].act(self, name, value)

    def put(self, source: str, targets: str | Sequence[str], value: Json) -> None:
        """Set the first of `targets` that the endpoint has, on behalf of `source`.

        Raises ApiError when the endpoint has none of them, or when the target has another value.
        """
        names = (targets,) if isinstance(targets, str) else targets
        target = next((name for name in names if name in self.own), None)
        if target is None:
            if self.answers:
                raise unsupported(source, "this endpoint has no such setting")
            self.ignored[source] = "this endpoint draws no tokens"
            return
        given = self.body.get(target)
        if given is not None and given != value:
            other = self.sources.get(target, target)
            raise invalid(source, f"{source} and {other} are both given", "they differ")
        if given is None:
            self.body[target] = value
            self.sources[target] = source

    def _is_foreign(self, name: str) -> bool:
        return name in TABLE and name not in self.own


@dataclass(frozen=True, slots=True)
class ForeignField:
    """A field of other servers. `effect` is a cell of the documentation, `act` applies the field.

    kind: whether it is mapped, refused unless it has a neutral value, or ignored.
    """

    servers: str
    kind: Literal["mapped", "neutral", "ignored"]
    effect: str
    act: Callable[[Adoption, str, Json], None] = field(compare=False)


def adopt(kind: type[Fields], body: Json, logged: set[str]) -> tuple[Json, dict[str, str]]:
    """Return the body with foreign fields mapped or left out, and the sources of mapped fields.

    Logs each ignored field once: `logged` holds the names so far. Raises ApiError for a value that
    cannot be honoured.
    """
    if not isinstance(body, dict) or TABLE.keys().isdisjoint(body):
        return body, {}
    adoption = Adoption(kind, body)
    for name, why in adoption.ignored.items():
        if name not in logged:
            logged.add(name)
            log.warning("ignoring the field %s of requests: %s", name, why)
    return adoption.body, adoption.sources


def as_sent(error: ApiError, sources: Mapping[str, str]) -> ApiError:
    """Return the error with the field that the client sent in place of the field it became."""
    found = re.fullmatch(r"([^.\[]+)(.*)", error.param or "", re.DOTALL)
    if found is None or error.param is None or found[1] not in sources:
        return error
    source = f"{sources[found[1]]}{found[2]}"
    what = error.what.replace(error.param, source, 1)
    return ApiError(
        error.status,
        what,
        error.why,
        error.hint,
        code=error.code,
        kind=error.kind,
        param=source,
        headers=error.headers,
        details=error.details,
    )


# ----- values that are objects -------------------------------------------------------------------


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


def _reasoning(adoption: Adoption, name: str, value: Json) -> None:
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


def _thinking(adoption: Adoption, name: str, value: Json) -> None:
    given = _members(_Thinking, name, value)
    if given.type != "auto":
        adoption.put(f"{name}.type", "enable_thinking", given.type != "disabled")
    if given.budget_tokens is not None:
        adoption.put(f"{name}.budget_tokens", "thinking_budget", given.budget_tokens)


def _think(adoption: Adoption, name: str, value: Json) -> None:
    if isinstance(value, bool):
        adoption.put(name, "enable_thinking", value)
    else:
        adoption.put(name, "reasoning_effort", value)


def _documents(adoption: Adoption, name: str, value: Json) -> None:
    given = adoption.body.get("chat_template_kwargs")
    if isinstance(given, dict | None) and "chat_template_kwargs" in adoption.own:
        adoption.body["chat_template_kwargs"] = {**(given or {}), "documents": value}
    else:
        adoption.put(name, "chat_template_kwargs", value)


def _json(adoption: Adoption, name: str, value: Json) -> None:
    adoption.put(name, "json_schema", {"type": "object"} if value in ("json", "") else value)


def _choice(adoption: Adoption, name: str, value: Json) -> None:
    if not isinstance(value, list) or not value or not all(isinstance(v, str) and v for v in value):
        raise invalid(name, f"{name} is not valid", "it must be a list of texts that are not empty")
    texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in value)
    adoption.put(name, "grammar", f"start: {texts}")


def _structured(adoption: Adoption, name: str, value: Json) -> None:
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
        _choice(adoption, f"{name}.choice", given.choice)


def _limit(adoption: Adoption, name: str, value: Json) -> None:
    if isinstance(value, bool) or value not in _UNLIMITED:
        adoption.put(name, _LIMIT, value)


def _budget(adoption: Adoption, name: str, value: Json) -> None:
    if isinstance(value, bool) or value != -1:
        adoption.put(name, "thinking_budget", value)


def _repetition(adoption: Adoption, name: str, value: Json) -> None:
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


def _options(adoption: Adoption, name: str, value: Json) -> None:
    if not isinstance(value, dict):
        raise invalid(name, f"{name} is not valid", "it must be an object")
    for key, each in value.items():
        source = f"{name}.{key[:80]}"
        if each is None:
            continue
        if key in _OPTIONS_SAME:
            adoption.put(source, key, each)
        elif key == "num_predict":
            _limit(adoption, source, each)
        elif key == "stop":
            adoption.put(source, _STOP, each)
        elif key in _OPTIONS_IGNORED:
            adoption.ignored[source] = "`zinc serve` decides how a model is loaded"
        else:
            known = (*_OPTIONS_SAME, *_OPTIONS_IGNORED, "num_predict", "stop")
            near = nearest(key, known)
            hint = f"did you mean {name}.{near}?" if near else "leave it out"
            raise invalid(source, f"there is no field {source}", "Ollama has no such option", hint)


def _output_format(adoption: Adoption, name: str, value: Json) -> None:
    given = adoption.body.get("output_config")
    if isinstance(given, dict) and "format" not in given:
        adoption.body["output_config"] = {**given, "format": value}
    else:
        adoption.put(name, "output_config", {"format": value})


# ----- the table ---------------------------------------------------------------------------------


def _mapped(servers: str, effect: str, act: Callable[[Adoption, str, Json], None]) -> ForeignField:
    return ForeignField(servers, "mapped", effect, act)


def _renamed(servers: str, targets: str | Sequence[str]) -> ForeignField:
    def act(adoption: Adoption, name: str, value: Json) -> None:
        adoption.put(name, targets, value)

    shown = targets if isinstance(targets, str) else targets[0]
    return ForeignField(servers, "mapped", f"`{shown}`", act)


def _neutral(servers: str, why: str, *values: Json) -> ForeignField:
    def act(adoption: Adoption, name: str, value: Json) -> None:
        if not any(value == each and type(value) is type(each) for each in values):
            raise unsupported(name, why)

    return ForeignField(servers, "neutral", why, act)


def _ignored(servers: str, why: str, *names: str) -> dict[str, ForeignField]:
    def act(adoption: Adoption, name: str, value: Json) -> None:
        adoption.ignored[name] = why

    return {name: ForeignField(servers, "ignored", why, act) for name in names}


_OWN_LIMIT = "the limit of tokens that the endpoint has; -1 is none"
_OLLAMA = (
    "`num_predict` becomes the limit of tokens; `temperature`, `top_k`, `stop`, `seed` and other "
    "sampling keep their names; `num_ctx` and what else concerns loading is ignored"
)

TABLE: dict[str, ForeignField] = {
    # limits and sampling
    "max_tokens": _mapped("OpenRouter", _OWN_LIMIT, _limit),
    "max_completion_tokens": _mapped("OpenAI", _OWN_LIMIT, _limit),
    "max_output_tokens": _mapped("OpenAI", _OWN_LIMIT, _limit),
    "max_new_tokens": _mapped("TGI, SGLang", _OWN_LIMIT, _limit),
    "n_predict": _mapped("llama.cpp", _OWN_LIMIT, _limit),
    "n_cmpl": _renamed("llama.cpp", "n"),
    "stop": _renamed("OpenAI", _STOP),
    "stop_sequences": _renamed("Anthropic", _STOP),
    "stopping_strings": _renamed("text-generation-webui", _STOP),
    "random_seed": _renamed("Mistral", "seed"),
    "sampling_seed": _renamed("SGLang", "seed"),
    "typical": _renamed("KoboldCpp", "typical_p"),
    "mirostat_mode": _renamed("text-generation-webui", "mirostat"),
    "rep_pen": _renamed("KoboldCpp", "repeat_penalty"),
    "rep_pen_range": _renamed("KoboldCpp", "repeat_last_n"),
    "repetition_penalty_range": _renamed("text-generation-webui", "repeat_last_n"),
    "repetition_penalty": _mapped(
        "vLLM, SGLang, TGI, OpenRouter",
        "`repeat_penalty`, over prompt and answer unless `repeat_last_n` is given",
        _repetition,
    ),
    "ban_eos_token": _renamed("text-generation-webui", "ignore_eos"),
    "options": _mapped("Ollama", _OLLAMA, _options),
    # reasoning
    "reasoning": _mapped(
        "OpenRouter",
        "`effort`: `reasoning_effort`, `enabled`: `enable_thinking`, `max_tokens`: "
        "`thinking_budget`, `exclude`: the opposite of `include_reasoning`",
        _reasoning,
    ),
    "thinking": _mapped(
        "DeepSeek, Z.ai, Anthropic",
        "`type`: `enable_thinking`, `budget_tokens`: `thinking_budget`",
        _thinking,
    ),
    "think": _mapped("Ollama", "`enable_thinking`, or `reasoning_effort` for a level", _think),
    "thinking_budget_tokens": _mapped("llama.cpp", "`thinking_budget`; -1 is none", _budget),
    "reasoning_budget_tokens": _mapped("llama.cpp", "`thinking_budget`; -1 is none", _budget),
    "thinking_token_budget": _mapped("vLLM", "`thinking_budget`; -1 is none", _budget),
    # form of the answer
    "guided_json": _renamed("vLLM", "json_schema"),
    "guided_regex": _renamed("vLLM", "regex"),
    "guided_grammar": _renamed("vLLM", "grammar"),
    "guided_choice": _mapped("vLLM", "`grammar`: one of these texts", _choice),
    "structured_outputs": _mapped(
        "vLLM",
        "`json` and `json_object`: `json_schema`, `regex`, `grammar`, `choice`: `grammar`",
        _structured,
    ),
    "ebnf": _renamed("SGLang", "grammar"),
    "grammar_string": _renamed("text-generation-webui", "grammar"),
    "format": _mapped("Ollama", "`json_schema`; \"json\" is any object", _json),
    "output_format": _mapped("Anthropic (beta)", "`output_config.format`", _output_format),
    # prompts
    "documents": _mapped("vLLM", "`chat_template_kwargs.documents`", _documents),
    "chat_template": _neutral("vLLM, SGLang", "templates come from the model or --chat-template"),
    "truncate_prompt_tokens": _neutral("vLLM", "prompts are not cut"),
    "truncate": _neutral("TGI, Ollama", "prompts are not cut", True, False),
    "prompt_truncate_len": _neutral("Fireworks", "prompts are not cut"),
    # what would change the answer, and cannot be honoured
    "use_beam_search": _neutral("vLLM", "answers are drawn, not searched", False),
    "num_beams": _neutral("transformers", "answers are drawn, not searched", 1),
    "best_of": _neutral("vLLM, TGI", "only n answers are generated", 1),
    "min_tokens": _neutral("vLLM, SGLang", "answers have no least length", 0),
    "stop_token_ids": _neutral("vLLM, SGLang", "answers end at stop strings", []),
    "include_stop_str_in_output": _neutral("vLLM", "stop strings are cut off", False),
    "no_stop_trim": _neutral("SGLang", "stop strings are cut off", False),
    "bad_words": _neutral("vLLM", "use logit_bias", []),
    "allowed_token_ids": _neutral("vLLM", "use a grammar", []),
    "prompt_logprobs": _neutral("vLLM", "use echo and logprobs of /v1/completions", 0),
    "logprob_token_ids": _neutral("vLLM", "use top_logprobs"),
    "logits_processors": _neutral("vLLM", "code from requests does not run here", []),
    "custom_logit_processor": _neutral("SGLang", "code from requests does not run here"),
    "return_tokens_as_token_ids": _neutral("vLLM", "tokens are told as text", False),
    "return_token_ids": _neutral("vLLM", "use return_tokens of /completion", False),
    "return_hidden_states": _neutral("SGLang", "use /v1/embeddings", False),
    "separate_reasoning": _neutral("SGLang", "reasoning comes apart from the content", True),
    "reasoning_in_content": _neutral("llama.cpp", "reasoning comes apart from the content", False),
    "parse_tool_calls": _neutral("llama.cpp", "calls are parsed", True),
    "n_probs": _neutral("llama.cpp", "use logprobs", 0),
    "post_sampling_probs": _neutral("llama.cpp", "use /completion", False),
    "lora": _neutral("llama.cpp", "adapters are not supported", []),
    "lora_path": _neutral("SGLang", "adapters are not supported"),
    "dynatemp_range": _neutral("llama.cpp", "the temperature does not change on its own", 0, 0.0),
    "top_a": _neutral("OpenRouter, KoboldCpp", "there is no such sampler", 0, 0.0),
    "tfs": _neutral("KoboldCpp", "there is no such sampler", 1, 1.0),
    "tfs_z": _neutral("llama.cpp", "there is no such sampler", 1, 1.0),
    "epsilon_cutoff": _neutral("text-generation-webui", "there is no such sampler", 0, 0.0),
    "eta_cutoff": _neutral("text-generation-webui", "there is no such sampler", 0, 0.0),
    "smoothing_factor": _neutral("text-generation-webui", "there is no such sampler", 0, 0.0),
    "penalty_alpha": _neutral("text-generation-webui", "there is no such sampler", 0, 0.0),
    "guidance_scale": _neutral("text-generation-webui", "prompts are run once", 1, 1.0),
    "negative_prompt": _neutral("text-generation-webui", "prompts are run once", ""),
    "watermark": _neutral("TGI", "answers are not marked", False),
    "enable_search": _neutral("DashScope", "this server searches nothing", False),
    "search_parameters": _neutral("xAI", "this server searches nothing"),
    "deferred": _neutral("xAI", "answers are made while the client waits", False),
    # no effect
    **_ignored(
        "Ollama, LM Studio", "`zinc serve --ttl` says how long a model stays loaded",
        "keep_alive", "ttl",
    ),
    **_ignored(
        "OpenAI", "it says nothing about the answer",
        "user", "metadata", "client_metadata", "store", "service_tier", "safety_identifier",
        "prediction", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
    ),
    **_ignored(
        "OpenRouter", "there is one provider, and no plugin",
        "provider", "models", "route", "transforms", "plugins", "preset", "session_id",
        "trace",
    ),
    **_ignored("OpenRouter", "answers tell their usage", "usage"),
    **_ignored(
        "vLLM", "it says how that server works, or how it prints special tokens",
        "skip_special_tokens", "spaces_between_special_tokens", "add_special_tokens", "detokenize",
        "length_penalty", "early_stopping", "guided_decoding_backend", "guided_whitespace_pattern",
        "mm_processor_kwargs", "media_io_kwargs", "truncation_side", "request_id",
        "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "repetition_detection",
        "watermarking", "return_prompt_text",
    ),
    **_ignored(
        "SGLang", "it says how that server works",
        "rid", "stream_reasoning", "data_parallel_rank", "bootstrap_host", "bootstrap_port",
        "bootstrap_room", "return_cached_tokens_details", "return_routed_experts", "extra_key",
    ),
    **_ignored(
        "llama.cpp", "it says how that server works",
        "n_discard", "slot_id", "backend_sampling", "chat_format", "chat_parser", "grammar_lazy",
        "grammar_triggers", "preserved_tokens", "generation_prompt", "thinking_forced_open",
        "reasoning_control", "reasoning_budget_message", "reasoning_budget_start_tag",
        "reasoning_budget_end_tag", "reasoning_budget_end_tags", "penalize_nl", "dynatemp_exponent",
        "adaptive_target", "adaptive_decay", "speculative.n_max", "speculative.n_min",
        "speculative.p_min", "speculative.type", "response_fields", "return_tokens",
        "t_max_predict_ms", "n_indent", "image_data",
    ),
    **_ignored(
        "TGI, transformers", "it says how that server works",
        "do_sample", "details", "decoder_input_details", "return_full_text", "top_n_tokens",
        "adapter_id", "tool_prompt", "guideline",
    ),
    **_ignored(
        "text-generation-webui, KoboldCpp, TabbyAPI", "there is no such setting",
        "add_bos_token", "truncation_length", "temperature_last", "sampler_priority",
        "sampler_order", "rep_pen_slope", "encoder_repetition_penalty", "no_repeat_ngram_size",
        "custom_token_bans", "auto_max_new_tokens", "max_tokens_second", "smoothing_curve",
        "dynamic_temperature", "dynatemp_low", "dynatemp_high", "speculative_ngram",
    ),
    **_ignored(
        "LiteLLM", "it is meant for the proxy",
        "drop_params", "additional_drop_params", "allowed_openai_params", "custom_llm_provider",
        "api_base", "base_url", "api_version", "num_retries", "timeout", "request_timeout",
        "fallbacks", "caching", "tags", "litellm_metadata", "litellm_session_id",
        "litellm_trace_id", "litellm_call_id", "no-log",
    ),
    **_ignored(
        "Open WebUI", "it is meant for the app's own server",
        "chat_id", "tool_ids", "tool_servers", "files", "features", "variables", "model_item",
        "background_tasks", "filter_ids",
    ),
    **_ignored(
        "Groq, Mistral, Together, Fireworks, DashScope, Z.ai", "there is no such setting",
        "safe_prompt", "prompt_mode", "guardrails", "safety_model", "compliance",
        "context_length_exceeded_behavior", "perf_metrics_in_response", "raw_output",
        "reasoning_history", "search_settings", "search_options", "citation_options",
        "disable_tool_validation", "compound_custom", "result_format", "incremental_output",
        "tool_stream", "translation_options", "sensitive_word_check", "draft_model",
    ),
    **_ignored(
        "GitHub Copilot", "it is meant for that service",
        "intent", "intent_threshold", "intent_content", "snippy",
    ),
    **_ignored(
        "Cohere, Jina, NIM", "texts are embedded as they are",
        "input_type", "task", "late_chunking", "normalized", "embedding_type",
    ),
}  # fmt: skip


# ----- documentation -----------------------------------------------------------------------------

_BEGIN, _END = "<!-- foreign fields: begin -->", "<!-- foreign fields: end -->"


def markdown() -> str:
    """Return the table as it stands in docs/server.md."""
    lines = ["| field | of | here |", "|---|---|---|"]
    lines += [
        f"| `{name}` | {row.servers} | {row.effect} |"
        for name, row in TABLE.items()
        if row.kind == "mapped"
    ]
    lines += ["", "Refused, with the field named, unless the value is null or changes nothing:", ""]
    lines += ["| fields | of | because |", "|---|---|---|"]
    lines += _grouped(name for name, row in TABLE.items() if row.kind == "neutral")
    lines += ["", "Ignored, with one line in the log for each name:", ""]
    lines += ["| fields | of | because |", "|---|---|---|"]
    lines += _grouped(name for name, row in TABLE.items() if row.kind == "ignored")
    return "\n".join(lines)


def _grouped(names: Iterable[str]) -> list[str]:
    """Return table rows, one for all fields with the same servers and reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        groups.setdefault((TABLE[name].servers, TABLE[name].effect), []).append(f"`{name}`")
    return [f"| {', '.join(v)} | {servers} | {why} |" for (servers, why), v in groups.items()]


def updated(page: str) -> str:
    """Return the page with the table between its markers."""
    text = f"{_BEGIN}\n{markdown()}\n{_END}"
    return re.sub(f"{_BEGIN}.*?{_END}", lambda _: text, page, flags=re.DOTALL)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(updated(path.read_text()))
