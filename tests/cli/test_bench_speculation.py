"""`zinc bench --speculate`: the cost of verified rows, and the speed with drafts."""

from __future__ import annotations

import json
import re

import pytest

from zinc.cli.bench_speculation import ROWS
from zinc.engine.speculative.step_times import StepTimes

OPTIONS = ("--prefill", 0, "--decode", 24, "--reps", 2, "--backend", "cpu")


@pytest.mark.parametrize("name", ["qwen3", "qwen35"])
def test_rows_and_answers_are_measured(zinc, fixture_model, name):
    path = fixture_model.with_stem(name)
    found = json.loads(zinc("bench", path, *OPTIONS, "--speculate", "--json").out)["speculation"]
    assert found["mode"] == "suffix"
    assert [row["rows"] for row in found["rows"]] == list(ROWS)
    assert found["rows"][0]["ratio"] == 1
    assert all(row["ms"] > 0 and row["ratio"] > 0 for row in found["rows"])
    new, repeated = found["answers"]
    assert (new["name"], repeated["name"]) == ("new text", "repeated text")
    for answer in (new, repeated):
        assert answer["plain_tokens_per_s"] > 0 < answer["drafted_tokens_per_s"]
        assert answer["speedup"] > 0
        assert answer["tokens_per_step"] >= 1
        assert 0 <= answer["accepted_tokens"] <= answer["drafted_tokens"]


def test_the_embedded_model_gains_from_drafts(zinc, monkeypatch):
    monkeypatch.setattr(StepTimes, "ratio", lambda self, rows: 1.0)  # on a busy machine too
    out = zinc("bench", *OPTIONS, "--depth", 20, "--speculate", "suffix").out
    assert re.search(r"^ +1 +[\d.]+ +1\.00$", out, re.MULTILINE)
    assert re.search(r"^new text +[\d.,]+ +[\d.,]+ +[\d.]+ +[\d.]+ +\d+ of \d+$", out, re.MULTILINE)
    found = re.search(r"^repeated text .* ([\d.]+) +(\d+) of (\d+)$", out, re.MULTILINE)
    assert found is not None
    assert float(found[1]) > 1.2
    assert int(found[2]) >= 0.9 * int(found[3]) > 0


def test_the_nextn_block_drafts_too(zinc, fixture_model):
    path = fixture_model.with_stem("glm4moe")
    found = json.loads(zinc("bench", path, *OPTIONS, "--speculate", "mtp", "--json").out)
    assert found["speculation"]["mode"] == "mtp"


def test_a_draft_model_drafts_too(zinc, fixture_model, monkeypatch):
    monkeypatch.setattr(StepTimes, "ratio", lambda self, rows: 1.0)  # on a busy machine too
    path = fixture_model.with_stem("qwen3")
    options = ("--speculate", "draft", "--draft", path, "--json")
    found = json.loads(zinc("bench", path, *OPTIONS, *options).out)["speculation"]
    assert found["mode"] == "draft"
    assert sum(answer["accepted_tokens"] for answer in found["answers"]) > 0


def test_no_drafts_are_measured_without_asking(zinc, fixture_model):
    found = json.loads(zinc("bench", fixture_model, *OPTIONS, "--json").out)
    assert "speculation" not in found


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--speculate", "--decode", "1"), "--decode of at least 2"),
        (("--speculate", "draft"), "--speculate draft and --draft MODEL go together"),
        (("--draft", "qwen3:0.6b"), "--speculate draft and --draft MODEL go together"),
    ],
)
def test_options_that_cannot_be_measured(zinc, fixture_model, options, says):
    result = zinc("bench", fixture_model, *options)
    assert result.status == 2
    assert says in result.err
