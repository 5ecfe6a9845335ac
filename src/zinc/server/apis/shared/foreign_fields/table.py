"""The table of request fields that other servers define and zinc's endpoints do not.

Each field is translated to a field of zinc, refused unless its value has no effect, or ignored with
one line in the log. A field that no server defines is an error (`body.parse`), so that a misspelt
name is noticed. docs/server.md shows the table; write it there after a change:
`python -m zinc.server.apis.shared.foreign_fields.table docs/server.md`.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from zinc.server.apis.shared.foreign_fields import values as values
from zinc.server.apis.shared.foreign_fields.rules import (
    ForeignField,
    TranslatedBody,
    ignored,
    mapped,
    neutral,
    renamed,
)
from zinc.server.http.body import Json
from zinc.server.http.fields import Fields
from zinc.server.http.log import printable

log = logging.getLogger("zinc.server")

_MAX_LOGGED = 1000  # names of ignored fields
_OWN_LIMIT = "the endpoint's token limit; -1 means no limit"
_OLLAMA = (
    "`num_predict` becomes the token limit; `temperature`, `top_k`, `stop`, `seed` and other "
    "sampling options keep their names; `num_ctx` and other options for loading, and unknown "
    "ones, are ignored with one line in the log for each name"
)

_BUDGET = "`thinking_budget`; -1 means no limit"

TABLE: dict[str, ForeignField] = {
    # limits and sampling
    "max_tokens": mapped("OpenRouter", _OWN_LIMIT, values.limit),
    "max_completion_tokens": mapped("OpenAI", _OWN_LIMIT, values.limit),
    "max_output_tokens": mapped("OpenAI", _OWN_LIMIT, values.limit),
    "max_new_tokens": mapped("TGI, SGLang", _OWN_LIMIT, values.limit),
    "n_predict": mapped("llama.cpp", _OWN_LIMIT, values.limit),
    "n_cmpl": renamed("llama.cpp", "n"),
    "stop": renamed("OpenAI", values.STOP),
    "stop_sequences": renamed("Anthropic", values.STOP),
    "stopping_strings": renamed("text-generation-webui", values.STOP),
    "random_seed": renamed("Mistral", "seed"),
    "sampling_seed": renamed("SGLang", "seed"),
    "typical": renamed("KoboldCpp", "typical_p"),
    "mirostat_mode": renamed("text-generation-webui", "mirostat"),
    "rep_pen": renamed("KoboldCpp", "repeat_penalty"),
    "rep_pen_range": renamed("KoboldCpp", "repeat_last_n"),
    "repetition_penalty_range": renamed("text-generation-webui", "repeat_last_n"),
    "repetition_penalty": mapped(
        "vLLM, SGLang, TGI, OpenRouter",
        "`repeat_penalty`, over prompt and answer unless `repeat_last_n` is given",
        values.repetition_penalty,
    ),
    "ban_eos_token": renamed("text-generation-webui", "ignore_eos"),
    "do_sample": mapped("transformers, Z.ai", "`temperature` 0 when it is false", values.do_sample),
    "usage": mapped(
        "OpenRouter", "`stream_options.include_usage`, in a stream", values.usage
    ),
    "extra_key": renamed("SGLang", "cache_salt"),
    "prompt_cache_isolation_key": renamed("Fireworks", "cache_salt"),
    "options": mapped("Ollama", _OLLAMA, values.options),
    "speculative.n_max": mapped(
        "llama.cpp",
        f"`speculate` false when it is 0; ignored otherwise: {values.MEASURED}",
        values.draft_limit,
    ),
    "speculative.type": mapped(
        "llama.cpp",
        f"`speculate` false when it is \"none\"; ignored otherwise: {values.CHOSEN}",
        values.draft_type,
    ),
    # reasoning
    "reasoning": mapped(
        "OpenRouter",
        "`effort`: `reasoning_effort`, `enabled`: `enable_thinking`, `max_tokens`: "
        "`thinking_budget`, `exclude`: the opposite of `include_reasoning`",
        values.reasoning,
    ),
    "thinking": mapped(
        "DeepSeek, Z.ai, Anthropic",
        "`type`: `enable_thinking`, `budget_tokens`: `thinking_budget`",
        values.thinking,
    ),
    "think": mapped("Ollama", "`enable_thinking`, or `reasoning_effort` for a level", values.think),
    "thinking_budget_tokens": mapped("llama.cpp", _BUDGET, values.budget),
    "reasoning_budget_tokens": mapped("llama.cpp", _BUDGET, values.budget),
    "thinking_token_budget": mapped("vLLM", _BUDGET, values.budget),
    # output format
    "guided_json": renamed("vLLM", "json_schema"),
    "guided_regex": renamed("vLLM", "regex"),
    "guided_grammar": renamed("vLLM", "grammar"),
    "guided_choice": mapped("vLLM", "`grammar`: one of these texts", values.choice),
    "structured_outputs": mapped(
        "vLLM",
        "`json` and `json_object`: `json_schema`, `regex`, `grammar`, `choice`: `grammar`",
        values.structured_outputs,
    ),
    "ebnf": renamed("SGLang", "grammar"),
    "grammar_string": renamed("text-generation-webui", "grammar"),
    "format": mapped(
        "Ollama", "`json_schema`; \"json\" is any object, \"\" no format", values.json_form
    ),
    "output_format": mapped("Anthropic (beta)", "`output_config.format`", values.output_format),
    # prompts
    "documents": mapped("vLLM", "`chat_template_kwargs.documents`", values.documents),
    "chat_template": neutral("vLLM, SGLang", "templates come from the model or --chat-template"),
    "truncate_prompt_tokens": neutral("vLLM", "prompts are not truncated"),
    "truncate": neutral("TGI, Ollama", "prompts are not truncated", True, False),
    "shift": neutral("Ollama", "use context_shift", True, False),
    "prompt_truncate_len": neutral("Fireworks", "prompts are not truncated"),
    # fields that would change the answer and are not supported
    "use_beam_search": neutral("vLLM", "there is no beam search", False),
    "num_beams": neutral("transformers", "there is no beam search", 1),
    "best_of": neutral("vLLM, TGI", "only n answers are generated", 1),
    "min_tokens": neutral("vLLM, SGLang", "answers have no minimum length", 0),
    "stop_token_ids": neutral("vLLM, SGLang", "answers end at stop strings", []),
    "include_stop_str_in_output": neutral("vLLM", "stop strings are removed", False),
    "no_stop_trim": neutral("SGLang", "stop strings are removed", False),
    "bad_words": neutral("vLLM", "use logit_bias", []),
    "allowed_token_ids": neutral("vLLM", "use a grammar", []),
    "prompt_logprobs": neutral("vLLM", "use echo and logprobs of /v1/completions", 0),
    "logprob_token_ids": neutral("vLLM", "use top_logprobs"),
    "logits_processors": neutral("vLLM", "code in requests is not run", []),
    "custom_logit_processor": neutral("SGLang", "code in requests is not run"),
    "return_tokens_as_token_ids": neutral("vLLM", "tokens are returned as text", False),
    "return_token_ids": neutral("vLLM", "use return_tokens of /completion", False),
    "return_hidden_states": neutral("SGLang", "use /v1/embeddings", False),
    "separate_reasoning": neutral("SGLang", "reasoning is separate from the content", True),
    "reasoning_in_content": neutral("llama.cpp", "reasoning is separate from the content", False),
    "parse_tool_calls": neutral("llama.cpp", "tool calls are always parsed", True),
    "n_probs": neutral("llama.cpp", "use logprobs", 0),
    "post_sampling_probs": neutral("llama.cpp", "use /completion", False),
    "lora_path": neutral("SGLang", "use lora"),
    "dynatemp_range": neutral("llama.cpp", "there is no dynamic temperature", 0, 0.0),
    "adaptive_target": neutral("llama.cpp", "there is no such sampler", -1, -1.0),
    "top_a": neutral("OpenRouter, KoboldCpp", "there is no such sampler", 0, 0.0),
    "tfs": neutral("KoboldCpp", "there is no such sampler", 1, 1.0),
    "tfs_z": neutral("llama.cpp", "there is no such sampler", 1, 1.0),
    "epsilon_cutoff": neutral("text-generation-webui", "there is no such sampler", 0, 0.0),
    "eta_cutoff": neutral("text-generation-webui", "there is no such sampler", 0, 0.0),
    "smoothing_factor": neutral("text-generation-webui", "there is no such sampler", 0, 0.0),
    "penalty_alpha": neutral("text-generation-webui", "there is no such sampler", 0, 0.0),
    "guidance_scale": neutral("text-generation-webui", "there is no guidance", 1, 1.0),
    "negative_prompt": neutral("text-generation-webui", "there is no guidance", ""),
    "no_repeat_ngram_size": neutral("text-generation-webui", "use the dry_* fields", 0),
    "encoder_repetition_penalty": neutral(
        "text-generation-webui", "there is no such sampler", 1, 1.0
    ),
    "custom_token_bans": neutral("text-generation-webui", "use logit_bias", ""),
    "dynamic_temperature": neutral(
        "text-generation-webui", "there is no dynamic temperature", False
    ),
    "repetition_detection": neutral("vLLM", "use the dry_* fields"),
    "return_full_text": neutral("TGI", "answers do not repeat the prompt", False),
    "top_n_tokens": neutral("TGI", "use top_logprobs", 0),
    "decoder_input_details": neutral("TGI", "use echo and logprobs of /v1/completions", False),
    "adapter_id": neutral("TGI", "use lora", ""),
    "image_data": neutral("llama.cpp", "only text is supported", []),
    "t_max_predict_ms": neutral("llama.cpp", "use /completion", 0, -1),
    "n_indent": neutral("llama.cpp", "use /completion", 0),
    "return_tokens": neutral("llama.cpp", "use /completion", False),
    "response_fields": neutral("llama.cpp", "use /completion", []),
    "watermarking": neutral("vLLM", "there are no watermarks", False),
    "watermark": neutral("TGI", "there are no watermarks", False),
    "enable_search": neutral("DashScope", "there is no search", False),
    "search_parameters": neutral("xAI", "there is no search"),
    "deferred": neutral("xAI", "there are no background answers", False),
    # no effect
    **ignored(
        "Ollama, LM Studio", "`zinc serve --ttl` sets how long a model stays loaded",
        "keep_alive", "ttl",
    ),
    **ignored("LM Studio", "a draft model would not change the answer", "draft_model"),
    **ignored(
        "OpenAI", "it does not affect the answer",
        "user", "metadata", "client_metadata", "store", "service_tier", "safety_identifier",
        "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
    ),
    **ignored("OpenAI", "only `/v1/chat/completions` drafts from a prediction", "prediction"),
    **ignored(
        "OpenRouter", "there is one provider and there are no plugins",
        "provider", "models", "route", "transforms", "plugins", "preset", "session_id",
        "trace",
    ),
    **ignored(
        "vLLM", "it controls the engine of that server, or how it prints special tokens",
        "skip_special_tokens", "spaces_between_special_tokens", "add_special_tokens", "detokenize",
        "length_penalty", "early_stopping", "guided_decoding_backend", "guided_whitespace_pattern",
        "mm_processor_kwargs", "media_io_kwargs", "truncation_side", "request_id",
        "kv_transfer_params", "ec_transfer_params", "vllm_xargs",
        "return_prompt_text",
    ),
    **ignored(
        "SGLang", "it controls the engine of that server",
        "rid", "stream_reasoning", "data_parallel_rank", "bootstrap_host", "bootstrap_port",
        "bootstrap_room", "return_cached_tokens_details", "return_routed_experts",
    ),
    **ignored(
        "llama.cpp", "it controls the engine of that server",
        "n_discard", "slot_id", "backend_sampling", "chat_format", "chat_parser", "grammar_lazy",
        "grammar_triggers", "preserved_tokens", "generation_prompt", "thinking_forced_open",
        "reasoning_control", "reasoning_budget_message", "reasoning_budget_start_tag",
        "reasoning_budget_end_tag", "reasoning_budget_end_tags", "penalize_nl", "dynatemp_exponent",
        "adaptive_decay",
    ),
    **ignored(
        "llama.cpp", values.MEASURED,
        "speculative.n_min", "speculative.p_min", "speculative.ngram_size_n",
        "speculative.ngram_size_m", "speculative.ngram_min_hits",
    ),
    **ignored(
        "TGI, transformers", "it configures that server",
        "details",
        "tool_prompt", "guideline",
    ),
    **ignored(
        "text-generation-webui, KoboldCpp, TabbyAPI", "there is no such setting",
        "add_bos_token", "truncation_length", "temperature_last", "sampler_priority",
        "sampler_order", "rep_pen_slope",
        "auto_max_new_tokens", "max_tokens_second", "smoothing_curve",
        "dynatemp_low", "dynatemp_high", "speculative_ngram",
    ),
    **ignored(
        "LiteLLM", "it is for the proxy",
        "drop_params", "additional_drop_params", "allowed_openai_params", "custom_llm_provider",
        "api_base", "base_url", "api_version", "num_retries", "timeout", "request_timeout",
        "fallbacks", "caching", "tags", "litellm_metadata", "litellm_session_id",
        "litellm_trace_id", "litellm_call_id", "no-log",
    ),
    **ignored(
        "Open WebUI", "it is for the app's own server",
        "chat_id", "tool_ids", "tool_servers", "files", "features", "variables", "model_item",
        "background_tasks", "filter_ids",
    ),
    **ignored(
        "Groq, Mistral, Together, Fireworks, DashScope, Z.ai", "there is no such setting",
        "safe_prompt", "prompt_mode", "guardrails", "safety_model", "compliance",
        "context_length_exceeded_behavior", "perf_metrics_in_response", "raw_output",
        "reasoning_history", "search_settings", "search_options", "citation_options",
        "disable_tool_validation", "compound_custom", "result_format", "incremental_output",
        "tool_stream", "translation_options", "sensitive_word_check",
    ),
    **ignored(
        "GitHub Copilot", "it is for that service",
        "intent", "intent_threshold", "intent_content", "snippy",
    ),
    **ignored(
        "Cohere, Jina, NIM", "texts are embedded unchanged",
        "input_type", "task", "late_chunking", "normalized", "embedding_type",
    ),
}  # fmt: skip


def translate(kind: type[Fields], body: Json, logged: set[str]) -> tuple[Json, dict[str, str]]:
    """Return the request body with foreign fields translated or removed, and their sources.

    kind: the fields of the endpoint. logged: names of ignored fields that were already logged; each
    is logged once. The sources map a field of zinc to the foreign field that set it. Raises
    ApiError for a value that is not supported.
    """
    if not isinstance(body, dict) or TABLE.keys().isdisjoint(body):
        return body, {}
    body = TranslatedBody(kind, body, TABLE)
    for name, why in body.ignored.items():
        # Clients choose the names of unknown options, so their number is limited.
        if name not in logged and len(logged) < _MAX_LOGGED:
            logged.add(name)
            log.warning("ignoring the field %s of requests: %s", printable(name), why)
    return body.fields, body.sources


_BEGIN, _END = "<!-- foreign fields: begin -->", "<!-- foreign fields: end -->"


def markdown() -> str:
    """Return the table as Markdown for docs/server.md."""
    parts = []
    for kind, text, column in (
        ("mapped", "Translated:", "becomes"),
        ("neutral", "Refused, unless null or a value without effect:", "reason"),
        ("ignored", "Ignored, with one line in the log for each name:", "reason"),
    ):
        rows = _rows(name for name, row in TABLE.items() if row.kind == kind)
        parts += [text, "", f"| fields | defined by | {column} |", "|---|---|---|", *rows, ""]
    return "\n".join(parts[:-1])


def _rows(names: Iterable[str]) -> list[str]:
    """Return the rows of the documentation, one for all fields with the same effect."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(TABLE[name].effect, []).append(name)
    rows = []
    for effect, members in groups.items():
        servers = dict.fromkeys(s for name in members for s in TABLE[name].servers.split(", "))
        shown = ", ".join(f"`{name}`" for name in members)
        rows.append(f"| {shown} | {', '.join(servers)} | {effect} |")
    return rows


def updated(page: str) -> str:
    """Return the text of docs/server.md, `page`, with the current table between its markers."""
    text = f"{_BEGIN}\n{markdown()}\n{_END}"
    return re.sub(f"{_BEGIN}.*?{_END}", lambda _: text, page, flags=re.DOTALL)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(updated(path.read_text()))
