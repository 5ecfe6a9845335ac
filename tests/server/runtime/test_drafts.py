"""A server whose steps verify drafts: the same answers, in fewer steps, and what it reports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest
from serving import LOAD, MODEL, Running, running

from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.engine.speculative.policy import Record
from zinc.engine.speculative.step_times import StepTimes
from zinc.server.config import ModelSource

FIELDS = {
    "messages": [{"role": "user", "content": "Count: one two three. one two three. one two"}],
    "temperature": 0.7,
    "seed": 5,
    "max_tokens": 60,
    "ignore_eos": True,
}
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module", autouse=True)
def _free_rows() -> Iterator[None]:
    """Let every draft pay, since times on a busy machine would decide otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepTimes, "ratio", lambda self, rows: 1.0)
        patch.setattr(Record, "guard", lambda self, n_generated: None)
        yield


@pytest.fixture(scope="module")
def drafting() -> Iterator[Running]:
    with running(load=replace(LOAD, speculate="suffix")) as found:
        yield found


def details(answer: Any) -> tuple[int, int]:
    """Return the accepted and the rejected tokens that an answer reports."""
    found = answer["usage"]["completion_tokens_details"]
    return found["accepted_prediction_tokens"], found["rejected_prediction_tokens"]


def metrics(server: Running) -> dict[str, float]:
    text = server.get("/metrics").body.decode()
    return {k: float(v) for k, v in re.findall(r"^([\w:]+)\{.*\} (\S+)$", text, re.M)}


def test_an_answer_is_drafted_from_an_earlier_one_and_is_the_same():
    with running(load=replace(LOAD, speculate="suffix")) as server:
        plain = server.post(CHAT, {**FIELDS, "speculate": False}).json
        answers = [server.post(CHAT, FIELDS).json for _ in range(3)]
        found = metrics(server)
    assert "draft_n" not in plain["timings"]
    assert details(plain) == (0, 0)
    for answer in answers:
        assert answer["choices"][0]["message"] == plain["choices"][0]["message"]
        assert answer["usage"]["completion_tokens"] == 60
    assert answers[-1]["timings"]["draft_n_accepted"] > 20
    for answer in answers:
        timings = answer["timings"]
        n_drafted, n_accepted = timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
        assert details(answer) == (n_accepted, n_drafted - n_accepted)
    n_accepted, n_rejected = (sum(counts) for counts in zip(*map(details, answers), strict=True))
    assert found["zinc_drafted_tokens_total"] == n_accepted + n_rejected
    assert found["zinc_accepted_draft_tokens_total"] == n_accepted
    assert found["llamacpp:spec_decode_num_draft_tokens_total"] == n_accepted + n_rejected
    assert found["llamacpp:spec_decode_num_accepted_tokens_total"] == n_accepted


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_prediction_is_drafted_from(drafting: Running, in_parts: bool):
    """With a salt of its own the answer repeats no earlier one."""
    fields = {**FIELDS, "messages": [{"role": "user", "content": "Tell me a story"}]}
    plain = drafting.post(CHAT, {**fields, "speculate": False}).json
    text = plain["choices"][0]["message"]["content"]
    middle = len(text) // 2
    parts = [{"type": "text", "text": half} for half in (text[:middle], text[middle:])]
    fields["cache_salt"] = f"prediction {in_parts}"
    with openai.OpenAI(base_url=f"{drafting.url}/v1", api_key="none", max_retries=0) as client:
        found = client.chat.completions.create(
            model=MODEL,
            messages=fields["messages"],
            temperature=0.7,
            seed=5,
            max_tokens=60,
            prediction={"type": "content", "content": parts if in_parts else text},
            extra_body={"ignore_eos": True, "cache_salt": fields["cache_salt"]},
        )
    assert found.choices[0].message.content == text
    assert found.usage.completion_tokens == 60
    assert found.usage.completion_tokens_details.accepted_prediction_tokens > 20


def test_usage_of_a_stream_and_of_completions(drafting: Running):
    fields = {**FIELDS, "stream": True, "stream_options": {"include_usage": True}}
    prompt = {"prompt": "one two three. " * 8, "temperature": 0, "max_tokens": 40, "n": 2}
    for path, body in ((CHAT, fields), ("/v1/completions", {**prompt, "ignore_eos": True})):
        for _ in range(3):
            found = drafting.post(path, body)
        usage = found.events[-2] if path == CHAT else found.json
        n_accepted, n_rejected = details(usage)
        assert n_accepted > 10
        assert n_rejected >= 0


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ("text", "prediction"),
        ({"type": "content"}, "prediction.content"),
        ({"content": "text"}, "prediction.type"),
        ({"type": "text", "content": "text"}, "prediction.type"),
        ({"type": "content", "content": 5}, "prediction.content"),
        ({"type": "content", "content": None}, "prediction.content"),
        (
            {"type": "content", "content": [{"type": "image_url", "image_url": "x"}]},
            "prediction.content[0].type",
        ),
        ({"type": "content", "content": [{"type": "text"}]}, "prediction.content[0].text"),
        ({"type": "content", "content": "word " * 9000}, "prediction"),
    ],
)
def test_a_prediction_that_is_not_valid(drafting: Running, prediction: Any, param: str):
    found = drafting.post(CHAT, {**FIELDS, "prediction": prediction})
    assert found.status == 400
    assert found.json["error"]["param"] == param


def test_a_prediction_is_ignored_elsewhere(drafting: Running):
    for text in ("text", "", None):
        prediction = None if text is None else {"type": "content", "content": text}
        fields = {"prompt": "Once", "max_tokens": 4, "prediction": prediction}
        assert drafting.post("/v1/completions", fields).status == 200
        assert drafting.post(CHAT, {**FIELDS, "prediction": prediction}).status == 200


@pytest.mark.parametrize("fields", [{"speculative.n_max": 0}, {"speculative.type": "none"}])
def test_llama_cpps_fields_turn_drafts_off(drafting: Running, fields: Any):
    body = {"prompt": "one two three. " * 8, "n_predict": 40, "ignore_eos": True, "seed": 3}
    for _ in range(2):
        answers = [drafting.post("/completion", {**body, **more}).json for more in ({}, fields)]
    assert answers[0]["timings"]["draft_n"] > 0
    assert "draft_n" not in answers[1]["timings"]
    assert answers[0]["content"] == answers[1]["content"]
    with_limit = drafting.post("/completion", {**body, "speculative.n_max": 4}).json
    assert with_limit["timings"]["draft_n"] > 0


def test_props_and_slots_say_whether_drafts_are_made(drafting: Running, server: Running):
    for each, expected in ((drafting, True), (server, False)):
        props = each.get("/props").json
        assert props["default_generation_settings"]["speculative"] is expected
        assert {slot["speculative"] for slot in each.get("/slots").json} == {expected}


def test_a_draft_model_drafts_for_the_first_model():
    """Its own tokens, and those of the model that it is."""
    fields = {**FIELDS, "temperature": 0}
    load = replace(LOAD, speculate="draft", draft=EMBEDDED_MODEL, context=256)
    models = (ModelSource("first", None), ModelSource("second", None))
    with running(load=load, models=models) as server:
        plain = server.post(CHAT, {**fields, "model": "first", "speculate": False}).json
        answers = [server.post(CHAT, {**fields, "model": m.name}).json for m in models]
        has_chain = {
            model.name: bool((each := model.llm.engine.speculation) and each.chains)
            for model in server.application.pool.loaded
        }
    assert has_chain == {"first": True, "second": False}
    for answer in answers:
        assert answer["choices"][0]["message"] == plain["choices"][0]["message"]
