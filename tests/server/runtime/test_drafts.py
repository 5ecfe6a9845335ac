"""A server whose steps verify drafts: the same answers, in fewer steps."""

from __future__ import annotations

from dataclasses import replace

from serving import LOAD, running

FIELDS = {
    "messages": [{"role": "user", "content": "Count: one two three. one two three. one two"}],
    "temperature": 0.7,
    "seed": 5,
    "max_tokens": 60,
    "ignore_eos": True,
}


def test_an_answer_is_drafted_from_an_earlier_one_and_is_the_same():
    with running(load=replace(LOAD, speculate="suffix")) as server:
        plain = server.post("/v1/chat/completions", {**FIELDS, "speculate": False}).json
        answers = [server.post("/v1/chat/completions", FIELDS).json for _ in range(3)]
    assert "draft_n" not in plain["timings"]
    for answer in answers:
        assert answer["choices"][0]["message"] == plain["choices"][0]["message"]
        assert answer["usage"]["completion_tokens"] == 60
    assert answers[-1]["timings"]["draft_n_accepted"] > 20
    assert answers[-1]["timings"]["draft_n"] >= answers[-1]["timings"]["draft_n_accepted"]
