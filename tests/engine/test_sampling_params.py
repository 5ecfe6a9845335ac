"""SamplingParams refuses impossible values, and names field, value and range."""

import math

import pytest

from zinc.core.errors import RequestError
from zinc.engine.sampling import DEFAULT_SAMPLERS, SamplingParams, recommended


def test_default_settings_are_valid_and_sample():
    params = SamplingParams()
    assert params.samplers == DEFAULT_SAMPLERS
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 40, 0.95, 0.05)
    assert not params.greedy


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "0.5"),
        ("temperature", True),
        ("temperature", None),
        ("top_k", 1.5),
        ("top_k", -2),
        ("top_p", 95),
        ("min_p", -0.01),
        ("typical_p", 1.01),
        ("xtc_probability", 2),
        ("xtc_threshold", -1),
        ("mirostat", 1),
        ("mirostat", False),
        ("mirostat_tau", -1.0),
        ("repeat_penalty", 0.0),
        ("repeat_last_n", -2),
        ("presence_penalty", math.inf),
        ("frequency_penalty", 10**400),
        ("dry_multiplier", -0.5),
        ("dry_allowed_length", -1),
        ("dry_penalty_last_n", 1.0),
        ("stop", ("x" * 4096, "y")),
        ("dry_sequence_breakers", ("x" * 41,)),
        ("dry_sequence_breakers", tuple(f"x{i}" for i in range(33))),
        ("dry_sequence_breakers", ("",)),
        ("seed", 2**64),
        ("seed", 0.5),
        ("max_tokens", -1),
        ("logprobs", -1),
        ("min_keep", -1),
        ("ignore_eos", 1),
        ("stop", ""),
        ("stop", ("",)),
        ("stop", (b"bytes",)),
        ("stop", 3),
        ("samplers", ("top_k", "magic")),
        ("samplers", ("top_k", "top_k")),
        ("logit_bias", {"5": 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {True: 1.0}),
        ("logit_bias", {5: math.nan}),
        ("logit_bias", {5: math.inf}),
        ("logit_bias", {5: "1"}),
        ("logit_bias", [1, 2]),
    ],
)
def test_refusals_name_the_field_and_the_range(field, value):
    with pytest.raises(RequestError, match=rf"^{field}.* is .*: it must be "):
        SamplingParams(**{field: value})


def test_a_refusal_does_not_repeat_a_long_value():
    with pytest.raises(RequestError) as refused:
        SamplingParams(stop="x" * 100_000)
    assert len(str(refused.value)) < 200


def test_sequences_become_tuples_and_biases_a_copy():
    biases = {3: 1, 4: -math.inf}
    params = SamplingParams(stop=["a", "b"], samplers=["top_k"], logit_bias=biases)
    biases[5] = 2
    assert params.stop == ("a", "b")
    assert SamplingParams(stop="word").stop == ("word",)
    assert params.samplers == ("top_k",)
    assert params.logit_bias == {3: 1.0, 4: -math.inf}


@pytest.mark.parametrize("t", [0, 0.0, 1e-7])
def test_a_temperature_that_rounds_to_zero_is_greedy(t):
    assert SamplingParams(temperature=t).greedy


def test_recommended_settings_of_a_file_are_read(caplog):
    """Numbers are float32, as in files. Values out of range are skipped with a warning."""
    keys = {
        "temp": 0.6000000238418579, "top_k": 20, "top_p": 0.949999988079071, "min_p": 7.0,
        "penalty_repeat": 1.0499999523162842, "penalty_last_n": -1, "mirostat": "no",
    }  # fmt: skip
    metadata = {f"general.sampling.{key}": value for key, value in keys.items()}
    found = recommended({"general.name": "x", **metadata})
    assert found == {
        "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repeat_penalty": 1.05, "repeat_last_n": -1,
    }  # fmt: skip
    assert SamplingParams(**found).top_k == 20
    assert [record.args[0] for record in caplog.records] == ["min_p", "mirostat"]
