"""The endpoints of llama.cpp's server, with raw requests, and those for operators."""

from __future__ import annotations

import json
import re

import pytest
from serving import MODEL, WEATHER, Running

from zinc import LLM, SamplingParams, __version__

PROMPT = "Once upon a time"
FIELDS = {"prompt": PROMPT, "temperature": 0, "n_predict": 16}


def test_completion(server: Running, llm: LLM):
    found = server.post("/completion", FIELDS)
    assert found.status == 200
    alone = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=16))
    body = found.json
    assert body["content"] == alone.text
    assert (body["stop"], body["stop_type"]) == (True, "limit")
    assert (body["tokens_predicted"], body["tokens"]) == (16, [])
    assert body["tokens_evaluated"] == alone.timings.prompt_tokens
    assert body["prompt"] == PROMPT
    assert body["model"] == MODEL
    assert body["truncated"] is False
    assert body["generation_settings"]["n_predict"] == 16
    assert body["generation_settings"]["temperature"] == 0
    assert body["timings"]["predicted_n"] == 16
    with_tokens = server.post("/completion", {**FIELDS, "return_tokens": True}).json
    assert with_tokens["tokens"] == alone.token_ids


def test_completion_streamed(server: Running):
    whole = server.post("/completion", FIELDS).json
    events = server.post("/completion", {**FIELDS, "stream": True}).events
    assert "".join(e["content"] for e in events) == whole["content"]
    assert [e["stop"] for e in events] == [False] * (len(events) - 1) + [True]
    assert any(e["tokens"] for e in events)
    assert events[-1]["stop_type"] == "limit"


def test_prompts_of_all_kinds(server: Running, llm: LLM):
    whole = server.post("/completion", FIELDS).json["content"]
    ids = llm.tokenizer.encode(PROMPT)
    for prompt in (ids, ["Once upon", *llm.tokenizer.encode(" a time", add_special=False)]):
        assert server.post("/completion", {**FIELDS, "prompt": prompt}).json["content"] == whole
    several = server.post("/completion", {**FIELDS, "prompt": [PROMPT, ids]}).json
    objects = server.post("/completion", {**FIELDS, "prompt": {"prompt_string": PROMPT}}).json
    assert objects["content"] == whole
    image = {"prompt_string": PROMPT, "multimodal_data": ["AAAA"]}
    assert (
        server.post("/completion", {**FIELDS, "prompt": image}).json["error"]["param"] == "prompt"
    )
    assert [each["content"] for each in several] == [whole, whole]
    assert [each["index"] for each in several] == [0, 1]


def test_stop_words_and_bans(server: Running, llm: LLM):
    whole = server.post("/completion", FIELDS).json["content"]
    word = whole.split()[2]
    found = server.post("/completion", {**FIELDS, "stop": ["", word]}).json
    assert found["content"] == whole[: whole.index(word)]
    assert (found["stop_type"], found["stopping_word"]) == ("word", word)
    first = llm.tokenizer.encode(whole, add_special=False)[0]
    for bias in ([[first, False]], {str(first): False}):
        banned = server.post("/completion", {**FIELDS, "logit_bias": bias}).json["content"]
        assert llm.tokenizer.encode(banned, add_special=False)[0] != first


def test_probabilities(server: Running):
    found = server.post("/completion", {**FIELDS, "n_probs": 3, "n_predict": 4}).json
    rows = found["completion_probabilities"]
    assert len(rows) == 4
    assert all(len(row["top_logprobs"]) == 3 for row in rows)
    assert all(row["id"] == row["top_logprobs"][0]["id"] for row in rows)
    assert "".join(row["token"] for row in rows) == found["content"]


def test_json_by_a_schema(server: Running):
    schema = {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 2, "maxItems": 3}
    found = server.post("/completion", {**FIELDS, "json_schema": schema, "n_predict": 80}).json
    assert 2 <= len(json.loads(found["content"])) <= 3


def test_response_fields(server: Running):
    wanted = ["content", "generation_settings/n_predict", "none/such"]
    found = server.post("/completion", {**FIELDS, "response_fields": wanted}).json
    assert set(found) == {"content", "n_predict"}


def test_a_time_limit_ends_the_answer(server: Running):
    limit = {"n_predict": 3000, "ignore_eos": True, "t_max_predict_ms": 150}
    found = server.post("/completion", {**FIELDS, **limit}).json
    assert 0 < found["tokens_predicted"] < 3000
    assert found["stop_type"] == "limit"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": {}}, "prompt"),
        ({"prompt": [[1, {}]]}, "prompt"),
        ({"n_predict": -5}, "n_predict"),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"json_schema": 5}, "json_schema"),
        ({"grammar": 'root ::= "x"', "json_schema": {}}, "grammar"),
        ({"lora": [{"id": 0}]}, "lora"),
        ({"post_sampling_probs": True}, "post_sampling_probs"),
        ({"dynatemp_range": 0.5}, "dynatemp_range"),
        ({"logit_bias": [[1]]}, "logit_bias"),
        ({"logit_bias": [[1, "x"]]}, "logit_bias"),
        ({"samplers": ["none"]}, "samplers"),
        ({"no_such_field": 1}, "no_such_field"),
    ],
)
def test_what_is_refused_names_its_field(server: Running, fields, param):
    found = server.post("/completion", {**FIELDS, **fields})
    assert found.status == 400
    assert found.json["error"]["param"] == param


def test_tokens(server: Running, llm: LLM):
    text = "Hello 🦊 你好"
    ids = server.post("/tokenize", {"content": text}).json["tokens"]
    assert ids == llm.tokenizer.encode(text, add_special=False)
    assert server.post("/detokenize", {"tokens": ids}).json == {"content": text}
    pieces = server.post("/tokenize", {"content": text, "with_pieces": True}).json["tokens"]
    joined = b"".join(
        p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces
    )
    assert joined.decode() == text
    end = llm.tokenizer.id_of("<|im_end|>")
    special = {"content": "<|im_end|>"}
    assert server.post("/tokenize", special).json["tokens"] == [end]
    plain = server.post("/tokenize", {**special, "parse_special": False}).json["tokens"]
    assert len(plain) > 1
    assert server.post("/detokenize", {"tokens": [10**9]}).status == 400


def test_apply_template(server: Running, llm: LLM):
    messages = [{"role": "user", "content": "What is <|im_end|>?"}]
    fields = {"messages": messages, "tools": [WEATHER]}
    found = server.post("/apply-template", fields).json["prompt"]
    assert found == llm.template.render(messages, tools=[WEATHER])


def test_props_and_slots(server: Running, llm: LLM):
    props = server.get("/props").json
    assert props["default_generation_settings"]["n_ctx"] == llm.context
    assert props["model_path"].endswith(".gguf")
    assert props["chat_template"] == llm.tokenizer.chat_template
    assert props["eos_token"] == "<|im_end|>"
    assert props["build_info"] == f"zinc {__version__}"
    slots = server.get("/slots").json
    assert len(slots) == props["total_slots"]
    assert not any(slot["is_processing"] for slot in slots)
    assert server.get("/slots?model=none").status == 404


def test_health(server: Running):
    for path in ("/health", "/v1/health"):
        assert server.get(path).json == {"status": "ok"}


def test_metrics(server: Running):
    def value(name: str) -> float:
        text = server.get("/metrics").body.decode()
        found = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    before = value("zinc_generated_tokens_total")
    server.post("/completion", FIELDS)
    assert value("zinc_generated_tokens_total") == before + 16
    assert value("zinc_time_to_first_token_seconds_count") > 0
    assert value("zinc_inter_token_seconds_sum") > 0
    assert value("zinc_kv_blocks") > 0
    assert value("zinc_kv_blocks_used") == 0
    assert value("zinc_requests_running") == 0
    found = server.get("/metrics")
    assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
    for line in found.body.decode().splitlines():
        assert re.fullmatch(
            r'# (HELP|TYPE) zinc_\w+ .+|zinc_\w+(\{(\w+="[^"]*",?)+\})? [-+0-9.e]+', line
        ), line


def test_strangers_do_not_grow_the_metrics(server: Running):
    for i in range(20):
        assert server.get(f"/made/up/{i}").status == 404
    text = server.get("/metrics").body.decode()
    assert "made" not in text
    assert 'path="other"' in text


def test_what_ignore_eos_bans_is_in_the_settings(server: Running, llm: LLM):
    found = server.post("/completion", {**FIELDS, "ignore_eos": True}).json
    bans = found["generation_settings"]["logit_bias"]
    assert {each["token"] for each in bans} == set(llm.tokenizer.eog_ids)
    assert all(each["bias"] is None for each in bans)


def test_tokens_of_a_conversation(server: Running):
    fields = {"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 1}
    for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
        found = server.post(path, fields).json["input_tokens"]
        usage = server.post("/v1/chat/completions", fields).json["usage"]
        assert found == usage["prompt_tokens"]
