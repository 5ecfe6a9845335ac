"""The endpoints of llama.cpp's server, health and metrics, with raw requests."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from serving import LOAD, MODEL, WEATHER, Running, running

from zinc import LLM, SamplingParams, __version__
from zinc.server.apis.llama import tokens
from zinc.server.apis.shared.infill import IndentReader
from zinc.tokenizer import Tokenizer
from zinc.tokenizer.vocabulary import FillMarks

PROMPT = "Once upon a time"


@pytest.fixture
def fills_gaps(server: Running, monkeypatch: pytest.MonkeyPatch) -> FillMarks:
    return mark_gaps(server, monkeypatch)


def mark_gaps(server: Running, monkeypatch: pytest.MonkeyPatch) -> FillMarks:
    """Give the embedded model's vocabulary fill-in-the-middle markers."""
    marks = FillMarks(prefix=8000, suffix=8001, middle=8002, repository=8003, file=8004)
    assert server.application.pool is not None
    tokenizer = server.application.pool.loaded[0].tokenizer
    monkeypatch.setattr(tokenizer, "fill", marks)
    return marks


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


def test_an_answer_that_fills_the_context_is_truncated():
    with running(load=replace(LOAD, context=64)) as server:
        for limit, truncated in ((8, False), (-1, True)):
            fields = {"prompt": PROMPT, "ignore_eos": True, "n_predict": limit}
            found = server.post("/completion", fields).json
            n_used = found["tokens_evaluated"] + found["tokens_predicted"]
            assert (n_used == 64, found["truncated"]) == (truncated, truncated)


def test_speeds_count_from_the_second_token(server: Running):
    one = server.post("/completion", {**FIELDS, "n_predict": 1}).json["timings"]
    assert (one["predicted_n"], one["predicted_per_token_ms"]) == (1, 0)
    several = server.post("/completion", FIELDS).json["timings"]
    per_token_ms = several["predicted_ms"] / 15
    assert several["predicted_per_token_ms"] == pytest.approx(per_token_ms)
    assert several["predicted_per_second"] == pytest.approx(1000 / per_token_ms)


def test_completion_streamed(server: Running):
    whole = server.post("/completion", FIELDS).json
    events = server.post("/completion", {**FIELDS, "stream": True}).events
    assert "".join(e["content"] for e in events) == whole["content"]
    assert [e["stop"] for e in events] == [False] * (len(events) - 1) + [True]
    assert any(e["tokens"] for e in events)
    assert events[-1]["stop_type"] == "limit"


def test_prompts_as_text_tokens_and_lists(server: Running, llm: LLM):
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


def test_probabilities_after_sampling(server: Running):
    sampled = {**FIELDS, "temperature": 1.5, "top_k": 8, "seed": 3, "n_predict": 12}
    plain = server.post("/completion", sampled).json["content"]
    asked = {**sampled, "n_probs": 10, "post_sampling_probs": True}
    found = server.post("/completion", asked).json
    assert found["content"] == plain
    assert found["generation_settings"]["post_sampling_probs"] is True
    rows = found["completion_probabilities"]
    assert any(len(row["top_probs"]) > 1 for row in rows)
    for row in rows:
        assert set(row) == {"id", "token", "prob", "bytes", "top_probs"}
        top = {each["id"]: each["prob"] for each in row["top_probs"]}
        assert top[row["id"]] == row["prob"] > 0
        assert sum(top.values()) == pytest.approx(1)
        assert list(top.values()) == sorted(top.values(), reverse=True)
    greedy = server.post("/completion", {**asked, "temperature": 0}).json
    for row in greedy["completion_probabilities"]:
        assert [each["prob"] for each in row["top_probs"]] == [row["prob"]] == [1.0]
    events = server.post("/completion", {**asked, "stream": True}).events
    streamed = [row for e in events for row in e.get("completion_probabilities", [])]
    assert streamed == rows


def test_json_follows_a_schema(server: Running):
    schema = {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 2, "maxItems": 3}
    found = server.post("/completion", {**FIELDS, "json_schema": schema, "n_predict": 80}).json
    assert 2 <= len(json.loads(found["content"])) <= 3


def test_response_fields(server: Running):
    wanted = ["content", "generation_settings/n_predict", "none/such"]
    found = server.post("/completion", {**FIELDS, "response_fields": wanted}).json
    assert set(found) == {"content", "generation_settings/n_predict"}
    assert found["generation_settings/n_predict"] == 16


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
        ({"lora": [{"id": 0, "scale": 1.0}]}, "lora"),
        ({"post_sampling_probs": 1}, "post_sampling_probs"),
        ({"n_indent": -1}, "n_indent"),
        ({"dynatemp_range": 0.5}, "dynatemp_range"),
        ({"logit_bias": [[1]]}, "logit_bias"),
        ({"logit_bias": [[1, "x"]]}, "logit_bias"),
        ({"samplers": ["none"]}, "samplers"),
        ({"no_such_field": 1}, "no_such_field"),
    ],
)
def test_errors_name_the_field(server: Running, fields, param):
    found = server.post("/completion", {**FIELDS, **fields})
    assert found.status == 400
    assert found.json["error"]["param"] == param


def test_a_gap_is_filled(server: Running, llm: LLM, fills_gaps: FillMarks):
    """The expected prompts are built here part by part."""
    prefix, suffix, head, other = (
        llm.tokenizer.encode(text, add_special=False)
        for text in ("Once upon a", " the end.", "file\n", "a.py\nx = 1\n")
    )
    marks = fills_gaps
    around = [marks.repository, *llm.tokenizer.encode("project\n", add_special=False)]
    around += [marks.file, *other, marks.file, *head]
    begun = llm.tokenizer.encode(" time", add_special=False)
    gap = [marks.suffix, *suffix, marks.middle]
    asked = {"input_prefix": "Once upon a", "input_suffix": " the end.", "temperature": 0}
    extra = [{"filename": "a.py", "text": "x = 1"}]
    for more, ids in (
        ({}, [marks.prefix, *prefix, *gap]),
        ({"prompt": " time"}, [marks.prefix, *prefix, *begun, *gap]),
        ({"input_extra": extra}, [*around, marks.prefix, *prefix, *gap]),
        ({"samplers": ["top_k", "infill"], "t_max_prompt_ms": 9}, [marks.prefix, *prefix, *gap]),
    ):
        expected = llm.generate(ids, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
        fields = {**asked, **more, "n_predict": 8, "ignore_eos": True}
        if "samplers" in more:
            fields["top_k"] = 1
        found = server.post("/infill", fields).json
        assert found["content"] == expected.text
        assert found["tokens_evaluated"] == len(ids)
    fields = {"prompt": "Once upon a", "suffix": " the end.", "temperature": 0, "max_tokens": 8}
    found = server.post("/v1/completions", {**fields, "ignore_eos": True}).json
    ids = [marks.prefix, *prefix, *gap]
    expected = llm.generate(ids, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    assert found["choices"][0]["text"] == expected.text
    assert server.post("/v1/completions", {**fields, "prompt": [1, 2]}).status == 400


def test_a_gap_in_a_long_text_keeps_the_nearest_text(llm: LLM, monkeypatch: pytest.MonkeyPatch):
    far, near = "far " * 6000, "near "
    fields = {"input_prefix": far + near, "input_suffix": near + far, "n_predict": 4}
    extra = [{"text": "other " * 500}]
    with running(load=replace(LOAD, context=1024)) as server:
        marks = mark_gaps(server, monkeypatch)
        asked = {**fields, "input_extra": extra, "response_fields": []}
        found = server.post("/infill", asked).json
    assert found["tokens_evaluated"] == 1024 - 4
    before, behind = found["prompt"].split(llm.tokenizer.decode([marks.suffix]))
    assert before.endswith(near)
    assert behind.startswith(near)
    assert "other" not in before
    assert 2 < before.count("far") / behind.count("far") < 4


def test_a_model_without_markers_cannot_fill_gaps(server: Running):
    found = server.post("/infill", {"input_prefix": "a", "input_suffix": "b"})
    assert found.status == 501
    assert "cannot fill gaps" in found.json["error"]["message"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n    b\n  c", "a\n    b"),
        ("a\n\n    b\n\nc", "a\n\n    b\n"),
        ("  a\n\tb\n", "  a"),
        ("a\n     b\n    ", "a\n     b\n    "),
    ],
)
def test_an_answer_ends_at_a_line_that_is_indented_less(text, expected):
    """The result does not depend on how the text is split."""

    class Letters:
        def is_hidden(self, id: int) -> bool:
            return False

        def token_bytes(self, id: int) -> bytes:
            return bytes([id])

    reader = IndentReader(Letters(), (), 4)
    events = [event for id in text.encode() for event in reader.push(id)] + reader.finish()
    assert "".join(event.text for event in events) == expected
    assert (reader.stopped is not None) == (expected != text)


def test_missing_endpoints_say_what_to_use_instead(server: Running):
    for path, said in (("/slots/0?action=save", "--cache-dir"),):
        found = server.post(path, {})
        assert found.status == 404
        assert said in str(found.json["error"])


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


@pytest.mark.parametrize("n_tokens", [0, 1, 4096, 4097, 9000])
def test_many_tokens_are_processed_outside_the_event_loop(
    server: Running, llm: LLM, monkeypatch: pytest.MonkeyPatch, n_tokens: int
) -> None:
    """In the event loop they would delay every stream."""
    decode, threads = Tokenizer.decode, set[str]()

    def noting_piece(tokenizer: Tokenizer, id: int) -> str:
        threads.add(threading.current_thread().name)
        return tokenizer.decode([id])

    def noting(*args: Any, **more: Any) -> str:
        threads.add(threading.current_thread().name)
        return decode(*args, **more)

    monkeypatch.setattr(tokens, "_piece", noting_piece)
    monkeypatch.setattr(Tokenizer, "decode", noting)
    (fox,) = llm.tokenizer.encode(" a", add_special=False)
    text = " a" * n_tokens
    assert server.post("/tokenize", {"content": text}).json == {"tokens": [fox] * n_tokens}
    found = server.post("/tokenize", {"content": text, "with_pieces": True}).json["tokens"]
    assert found == [{"id": fox, "piece": " a"}] * n_tokens
    assert server.post("/detokenize", {"tokens": [fox] * n_tokens}).json == {"content": text}
    event_loop = server.call(lambda: threading.current_thread().name)
    assert threads
    assert event_loop not in threads


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
    assert server.get("/slots?model=any").status == 200


def test_a_prompt_longer_than_the_context_gets_llama_cpps_error(server: Running, llm: LLM):
    prompt = "word " * 9000
    for path in ("/completion", "/v1/completions"):
        error = server.post(path, {"prompt": prompt}).json["error"]
        assert error["type"] == "exceed_context_size_error"
        assert error["code"] == "context_length_exceeded"
        assert error["n_ctx"] == llm.context < error["n_prompt_tokens"]
        assert "exceeds the available context size" in error["message"]


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
    assert 0 <= time.time() - int(found.headers["process-start-time-unix"]) < 1e5
    for line in found.body.decode().splitlines():
        assert re.fullmatch(
            r"# (HELP|TYPE) (zinc_|llamacpp:)\w+ .+"
            r'|(zinc_|llamacpp:)\w+(\{(\w+="[^"]*",?)+\})? [-+0-9.e]+',
            line,
        ), line


def test_metrics_under_the_names_of_llama_cpp(server: Running):
    def values() -> dict[str, float]:
        text = server.get("/metrics").body.decode()
        return {k: float(v) for k, v in re.findall(r"^llamacpp:(\w+)\{.*\} (\S+)$", text, re.M)}

    server.post("/completion", FIELDS)
    before = values()
    timings = [
        server.post("/completion", {**FIELDS, "prompt": "Far away" * 40}).json["timings"]
        for _ in range(2)
    ]
    gained = {name: value - before[name] for name, value in values().items()}
    assert timings[1]["cache_n"] > 0
    assert gained["prompt_tokens_total"] == sum(t["prompt_n"] for t in timings)
    assert gained["prompt_tokens_cached_total"] == sum(t["cache_n"] for t in timings)
    n_predicted = sum(t["predicted_n"] for t in timings)
    assert gained["tokens_predicted_total"] == n_predicted
    assert gained["n_decode_total"] >= n_predicted
    took = sum(t["prompt_ms"] for t in timings) / 1000
    assert gained["prompt_seconds_total"] == pytest.approx(took, abs=1e-4)
    took = sum(t["predicted_ms"] for t in timings) / 1000
    assert gained["tokens_predicted_seconds_total"] == pytest.approx(took, abs=1e-4)
    rates = values()
    assert rates["prompt_tokens_seconds"] == pytest.approx(
        rates["prompt_tokens_total"] / rates["prompt_seconds_total"]
    )
    n_answers = rates["tokens_predicted_total"] - (
        rates["predicted_tokens_seconds"] * rates["tokens_predicted_seconds_total"]
    )
    assert n_answers == pytest.approx(
        round(n_answers)
    )  # the first token of each answer comes from prefill
    assert rates["requests_processing"] == rates["requests_deferred"] == 0


LONG = "The ship sailed north for a day and a night. " * 60
STREAMS = {
    "/completion": {"prompt": LONG, "n_predict": 6},
    "/v1/completions": {"prompt": LONG, "max_tokens": 6},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}], "max_tokens": 6},
    "/v1/responses": {"input": LONG, "max_output_tokens": 6},
}


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_reports_the_progress_of_its_prompt(server: Running, path):
    fresh = {"seed": 1, "temperature": 0, "stream": True, "ignore_eos": True}
    salt = f"{path} {len(STREAMS)}: "
    fields = json.loads(json.dumps(STREAMS[path]).replace("The ship", salt, 1)) | fresh
    for cached in (False, True):
        told = {"return_progress": True, "timings_per_token": True}
        events = server.post(path, {**fields, **told}).events
        progress = [e for e in events if "prompt_progress" in e]
        steps = [e["prompt_progress"] for e in progress]
        assert (steps[0]["cache"] > 50) == cached
        assert steps[0]["processed"] == steps[0]["cache"]
        assert steps[-1]["processed"] == steps[-1]["total"] > 500
        assert all(a["processed"] < b["processed"] for a, b in itertools.pairwise(steps))
        assert all(a["time_ms"] <= b["time_ms"] for a, b in itertools.pairwise(steps))
        assert {(s["total"], s["cache"]) for s in steps} == {(steps[0]["total"], steps[0]["cache"])}
        timings = [e["timings"] for e in progress]
        assert timings[0]["prompt_n"] == timings[0]["prompt_ms"] == timings[0]["predicted_n"] == 0
        assert timings[-1]["prompt_n"] == steps[-1]["total"] - steps[-1]["cache"]
        # After that, every piece of the answer has timings.
        rest = [e for e in events if e not in progress and "timings" in e]
        counts = [e["timings"]["predicted_n"] for e in rest]
        assert len(rest) > 1
        assert counts == sorted(counts)
        assert counts[-1] == 6
        assert events.index(progress[-1]) < events.index(rest[0])
    plain = server.post(path, fields).events
    assert not any("prompt_progress" in e for e in plain)
    assert sum("timings" in e for e in plain) == (path != "/v1/responses")
    whole = server.post(path, {**fields, **told, "stream": False})
    assert whole.status == 200


def test_a_scored_prompt_is_echoed_after_its_progress(server: Running):
    fields = {"prompt": LONG + "By dawn.", "max_tokens": 2, "echo": True, "logprobs": 1}
    told = {"stream": True, "return_progress": True, "temperature": 0}
    events = server.post("/v1/completions", {**fields, **told}).events
    kinds = ["prompt_progress" in e for e in events]
    assert kinds == sorted(kinds, reverse=True)
    assert sum(kinds) > 1
    assert events[sum(kinds)]["choices"][0]["text"] == fields["prompt"]


def test_usage_comes_with_timings(server: Running):
    for path in ("/v1/completions", "/v1/chat/completions"):
        fields = {**STREAMS[path], "stream": True, "ignore_eos": True}
        fields["stream_options"] = {"include_usage": True}
        last = server.post(path, fields).events[-2]
        assert last["choices"] == []
        assert last["timings"]["predicted_n"] == last["usage"]["completion_tokens"] == 6


def test_unknown_paths_do_not_grow_the_metrics(server: Running):
    for i in range(20):
        assert server.get(f"/made/up/{i}").status == 404
    text = server.get("/metrics").body.decode()
    assert "made" not in text
    assert 'path="other"' in text


def test_tokens_banned_by_ignore_eos_are_in_the_settings(server: Running, llm: LLM):
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
