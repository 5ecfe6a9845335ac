"""The fields that other servers and their clients have, and our endpoints do not.

Each is mapped to a field of ours, refused unless it has a neutral value, or ignored with one line
in the log. A name that no server has stays an error (`body.parse`): a misspelt field would change
nothing in silence. docs/server.md shows the table; after a change, write it there with
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
    Adoption,
    ForeignField,
    ignored,
    mapped,
    neutral,
    renamed,
)
from zinc.server.http.body import Fields, Json

log = logging.getLogger("zinc.server")

_OWN_LIMIT = "the limit of tokens that the endpoint has; -1 is none"
_OLLAMA = (
    "`num_predict` becomes the limit of tokens; `temperature`, `top_k`, `stop`, `seed` and other "
    "sampling keep their names; `num_ctx` and what else concerns loading is ignored"
)

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
    "thinking_budget_tokens": mapped("llama.cpp", "`thinking_budget`; -1 is none", values.budget),
    "reasoning_budget_tokens": mapped("llama.cpp", "`thinking_budget`; -1 is none", values.budget),
    "thinking_token_budget": mapped("vLLM", "`thinking_budget`; -1 is none", values.budget),
    # form of the answer
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
    "format": mapped("Ollama", "`json_schema`; \"json\" is any object", values.json_form),
    "output_format": mapped("Anthropic (beta)", "`output_config.format`", values.output_format),
    # prompts
    "documents": mapped("vLLM", "`chat_template_kwargs.documents`", values.documents),
    "chat_template": neutral("vLLM, SGLang", "templates come from the model or --chat-template"),
    "truncate_prompt_tokens": neutral("vLLM", "prompts are not cut"),
    "truncate": neutral("TGI, Ollama", "prompts are not cut", True, False),
    "prompt_truncate_len": neutral("Fireworks", "prompts are not cut"),
    # what would change the answer, and cannot be honoured
    "use_beam_search": neutral("vLLM", "answers are drawn, not searched", False),
    "num_beams": neutral("transformers", "answers are drawn, not searched", 1),
    "best_of": neutral("vLLM, TGI", "only n answers are generated", 1),
    "min_tokens": neutral("vLLM, SGLang", "answers have no least length", 0),
    "stop_token_ids": neutral("vLLM, SGLang", "answers end at stop strings", []),
    "include_stop_str_in_output": neutral("vLLM", "stop strings are cut off", False),
    "no_stop_trim": neutral("SGLang", "stop strings are cut off", False),
    "bad_words": neutral("vLLM", "use logit_bias", []),
    "allowed_token_ids": neutral("vLLM", "use a grammar", []),
    "prompt_logprobs": neutral("vLLM", "use echo and logprobs of /v1/completions", 0),
    "logprob_token_ids": neutral("vLLM", "use top_logprobs"),
    "logits_processors": neutral("vLLM", "code from requests does not run here", []),
    "custom_logit_processor": neutral("SGLang", "code from requests does not run here"),
    "return_tokens_as_token_ids": neutral("vLLM", "tokens are told as text", False),
    "return_token_ids": neutral("vLLM", "use return_tokens of /completion", False),
    "return_hidden_states": neutral("SGLang", "use /v1/embeddings", False),
    "separate_reasoning": neutral("SGLang", "reasoning comes apart from the content", True),
    "reasoning_in_content": neutral("llama.cpp", "reasoning comes apart from the content", False),
    "parse_tool_calls": neutral("llama.cpp", "calls are parsed", True),
    "n_probs": neutral("llama.cpp", "use logprobs", 0),
    "post_sampling_probs": neutral("llama.cpp", "use /completion", False),
    "lora": neutral("llama.cpp", "adapters are not supported", []),
    "lora_path": neutral("SGLang", "adapters are not supported"),
    "dynatemp_range": neutral("llama.cpp", "the temperature does not change on its own", 0, 0.0),
    "adaptive_target": neutral("llama.cpp", "there is no such sampler", -1, -1.0),
    "top_a": neutral("OpenRouter, KoboldCpp", "there is no such sampler", 0, 0.0),
    "tfs": neutral("KoboldCpp", "there is no such sampler", 1, 1.0),
    "tfs_z": neutral("llama.cpp", "there is no such sampler", 1, 1.0),
    "epsilon_cutoff": neutral("text-generation-webui", "there is no such sampler", 0, 0.0),
    "eta_cutoff": neutral("text-generation-webui", "there is no such sampler", 0, 0.0),
    "smoothing_factor": neutral("text-generation-webui", "there is no such sampler", 0, 0.0),
    "penalty_alpha": neutral("text-generation-webui", "there is no such sampler", 0, 0.0),
    "guidance_scale": neutral("text-generation-webui", "prompts are run once", 1, 1.0),
    "negative_prompt": neutral("text-generation-webui", "prompts are run once", ""),
    "no_repeat_ngram_size": neutral("text-generation-webui", "use the dry_* fields", 0),
    "encoder_repetition_penalty": neutral(
        "text-generation-webui", "there is no such sampler", 1, 1.0
    ),
    "custom_token_bans": neutral("text-generation-webui", "use logit_bias", ""),
    "dynamic_temperature": neutral(
        "text-generation-webui", "the temperature does not change on its own", False
    ),
    "repetition_detection": neutral("vLLM", "use the dry_* fields"),
    "return_full_text": neutral("TGI", "answers do not repeat the prompt", False),
    "top_n_tokens": neutral("TGI", "use top_logprobs", 0),
    "decoder_input_details": neutral("TGI", "use echo and logprobs of /v1/completions", False),
    "adapter_id": neutral("TGI", "adapters are not supported", ""),
    "image_data": neutral("llama.cpp", "only text is understood", []),
    "t_max_predict_ms": neutral("llama.cpp", "use /completion", 0, -1),
    "n_indent": neutral("llama.cpp", "use /completion", 0),
    "return_tokens": neutral("llama.cpp", "use /completion", False),
    "response_fields": neutral("llama.cpp", "use /completion", []),
    "watermarking": neutral("vLLM", "answers are not marked", False),
    "watermark": neutral("TGI", "answers are not marked", False),
    "enable_search": neutral("DashScope", "this server searches nothing", False),
    "search_parameters": neutral("xAI", "this server searches nothing"),
    "deferred": neutral("xAI", "answers are made while the client waits", False),
    # no effect
    **ignored(
        "Ollama, LM Studio", "`zinc serve --ttl` says how long a model stays loaded",
        "keep_alive", "ttl",
    ),
    **ignored("LM Studio", "a draft model would not change the answer", "draft_model"),
    **ignored(
        "OpenAI", "it says nothing about the answer",
        "user", "metadata", "client_metadata", "store", "service_tier", "safety_identifier",
        "prediction", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
    ),
    **ignored(
        "OpenRouter", "there is one provider, and no plugin",
        "provider", "models", "route", "transforms", "plugins", "preset", "session_id",
        "trace",
    ),
    **ignored(
        "vLLM", "it says how that server works, or how it prints special tokens",
        "skip_special_tokens", "spaces_between_special_tokens", "add_special_tokens", "detokenize",
        "length_penalty", "early_stopping", "guided_decoding_backend", "guided_whitespace_pattern",
        "mm_processor_kwargs", "media_io_kwargs", "truncation_side", "request_id",
        "kv_transfer_params", "ec_transfer_params", "vllm_xargs",
        "return_prompt_text",
    ),
    **ignored(
        "SGLang", "it says how that server works",
        "rid", "stream_reasoning", "data_parallel_rank", "bootstrap_host", "bootstrap_port",
        "bootstrap_room", "return_cached_tokens_details", "return_routed_experts",
    ),
    **ignored(
        "llama.cpp", "it says how that server works",
        "n_discard", "slot_id", "backend_sampling", "chat_format", "chat_parser", "grammar_lazy",
        "grammar_triggers", "preserved_tokens", "generation_prompt", "thinking_forced_open",
        "reasoning_control", "reasoning_budget_message", "reasoning_budget_start_tag",
        "reasoning_budget_end_tag", "reasoning_budget_end_tags", "penalize_nl", "dynatemp_exponent",
        "adaptive_decay", "speculative.n_max", "speculative.n_min", "speculative.p_min",
        "speculative.type",
    ),
    **ignored(
        "TGI, transformers", "it says how that server works",
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
        "LiteLLM", "it is meant for the proxy",
        "drop_params", "additional_drop_params", "allowed_openai_params", "custom_llm_provider",
        "api_base", "base_url", "api_version", "num_retries", "timeout", "request_timeout",
        "fallbacks", "caching", "tags", "litellm_metadata", "litellm_session_id",
        "litellm_trace_id", "litellm_call_id", "no-log",
    ),
    **ignored(
        "Open WebUI", "it is meant for the app's own server",
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
        "GitHub Copilot", "it is meant for that service",
        "intent", "intent_threshold", "intent_content", "snippy",
    ),
    **ignored(
        "Cohere, Jina, NIM", "texts are embedded as they are",
        "input_type", "task", "late_chunking", "normalized", "embedding_type",
    ),
}  # fmt: skip


def adopt(kind: type[Fields], body: Json, logged: set[str]) -> tuple[Json, dict[str, str]]:
    """Return the body with foreign fields mapped or left out, and the sources of mapped fields.

    Logs each ignored field once: `logged` holds the names so far. Raises ApiError for a value that
    cannot be honoured.
    """
    if not isinstance(body, dict) or TABLE.keys().isdisjoint(body):
        return body, {}
    adoption = Adoption(kind, body, TABLE)
    for name, why in adoption.ignored.items():
        if name not in logged:
            logged.add(name)
            log.warning("ignoring the field %s of requests: %s", name, why)
    return adoption.body, adoption.sources


_BEGIN, _END = "<!-- foreign fields: begin -->", "<!-- foreign fields: end -->"


def markdown() -> str:
    """Return the table as it stands in docs/server.md."""
    parts = []
    for kind, text, column in (
        ("mapped", "Mapped:", "here"),
        ("neutral", "Refused, with the field named, unless null or without effect:", "because"),
        ("ignored", "Ignored, with one line in the log for each name:", "because"),
    ):
        rows = _rows(name for name, row in TABLE.items() if row.kind == kind)
        parts += [text, "", f"| fields | of | {column} |", "|---|---|---|", *rows, ""]
    return "\n".join(parts[:-1])


def _rows(names: Iterable[str]) -> list[str]:
    """Return rows of the documentation, one for all fields with the same effect."""
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
    """Return the page with the table between its markers."""
    text = f"{_BEGIN}\n{markdown()}\n{_END}"
    return re.sub(f"{_BEGIN}.*?{_END}", lambda _: text, page, flags=re.DOTALL)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(updated(path.read_text()))
