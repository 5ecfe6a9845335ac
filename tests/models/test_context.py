"""RoPE scaling for long contexts: which sequences use it, and equality with transformers.

The fixture qwen3yarn has logits of the same weights with plain RoPE and with YaRN of factor 4 over
an original context of 64 tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from models.harness import BACKENDS, FIXTURES, Runner, expected, relative_error, rewrite

from zinc.core.errors import RequestError, UnsupportedError
from zinc.formats.gguf import GGUFFile
from zinc.models import ModelSpec, load
from zinc.models.parts.context import RopeScaling

YARN = FIXTURES / "qwen3yarn.gguf"
KEYS = [f"qwen3.rope.scaling.{key}" for key in ("type", "factor", "original_context_length")]
ASKED, DOUBLE = RopeScaling("yarn", 4.0, 64), RopeScaling("yarn", 8.0, 64)
TOLERANCE = {"ref": 1e-5}


@pytest.fixture(scope="module")
def unscaled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model as a file without YaRN keys."""
    target = tmp_path_factory.mktemp("context") / "unscaled.gguf"
    return rewrite(YARN, target, drop=KEYS, metadata={"qwen3.context_length": 64})


def spec_of(path: Path, rope: RopeScaling | None = None, **given: Any) -> ModelSpec:
    with GGUFFile.open(path) as file:
        return load(file, rope=rope, **given)[0]


# -- Logits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("case", "stated", "rope", "extended"),
    [
        ("", True, None, False),
        ("yarn_long_", True, None, True),
        ("", False, ASKED, False),
        ("yarn_long_", False, ASKED, True),
        ("yarn_", True, RopeScaling(always=True), False),
        ("yarn_", False, RopeScaling("yarn", 4.0, 64, always=True), False),
        ("long_", True, RopeScaling("none"), False),
    ],
)
def test_logits_equal_those_of_the_published_code(
    unscaled: Path,
    backend: str,
    case: str,
    stated: bool,
    rope: RopeScaling | None,
    extended: bool,
) -> None:
    ids, logits = expected("qwen3yarn", case)
    path = YARN if stated else unscaled
    for size in (len(ids), 16):
        got = Runner(path, backend, rope=rope, extended=extended).feed_in_chunks(ids, size)
        assert relative_error(got, logits) <= TOLERANCE.get(backend, 2e-3)
        assert (got.argmax(axis=1) == logits.argmax(axis=1)).all()


def test_plain_and_scaled_logits_differ() -> None:
    for case in ("", "long_"):
        plain, scaled = (expected("qwen3yarn", prefix + case)[1] for prefix in ("", "yarn_"))
        assert relative_error(plain, scaled) > 0.05


# -- How far, and from where --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rope", "context", "reach", "plain"),
    [
        (None, None, 64, 0),
        (RopeScaling("yarn", 4.0), None, 256, 64),
        (RopeScaling("linear", 2.0), None, 128, 64),
        (RopeScaling("yarn", 4.0, 32), None, 128, 32),
        (RopeScaling(factor=4.0), None, 256, 64),  # yarn, when the file names no type
        (RopeScaling("yarn"), 100, 100, 64),  # the factor that the context needs
        (RopeScaling("yarn"), 64, 64, 0),  # which is none
        (RopeScaling("yarn", 4.0, always=True), None, 256, 0),
        (RopeScaling("none"), None, 64, 0),
    ],
)
def test_the_requested_scaling_decides(
    unscaled: Path, rope: RopeScaling | None, context: int | None, reach: int, plain: int
) -> None:
    spec = spec_of(unscaled, rope, context=context)
    assert (spec.context, spec.plain_context) == (reach, plain)


@pytest.mark.parametrize(
    ("rope", "reach", "plain"),
    [
        (None, 256, 64),
        (RopeScaling(factor=8.0), 512, 64),
        (ASKED, 256, 64),
        (RopeScaling(original_context=100), 400, 100),
        (RopeScaling(always=True), 256, 0),
        (RopeScaling("none"), 64, 0),
    ],
)
def test_values_not_requested_come_from_the_file(
    rope: RopeScaling | None, reach: int, plain: int
) -> None:
    spec = spec_of(YARN, rope)
    assert (spec.context, spec.plain_context) == (reach, plain)


def test_a_model_trained_with_a_scaling_uses_it_at_every_length() -> None:
    path = FIXTURES / "gptoss.gguf"
    spec = spec_of(path)
    assert spec.plain_context == 0
    assert {rope.scaling for rope in spec.ropes()} == {"yarn"}
    (rope,) = set(spec.ropes())
    further = RopeScaling(factor=4 * spec.context / rope.original_context)
    short, long = spec_of(path, further), spec_of(path, further, extended=True)
    assert short.plain_context == spec.context
    assert short.context == long.context == 4 * spec.context
    assert set(short.ropes()) == {rope}
    assert {(r.scaling, r.factor, r.truncate) for r in long.ropes()} == {
        ("yarn", further.factor, False)
    }
    # What the file does already is no change.
    same = RopeScaling("yarn", rope.factor, rope.original_context)
    assert spec_of(path, same).plain_context == 0
    assert {rope.scaling for rope in spec_of(path, RopeScaling("none")).ropes()} == {"none"}


def test_sliding_layers_keep_their_frequencies() -> None:
    """In Gemma, only the RoPE of global layers is scaled."""
    spec = spec_of(FIXTURES / "gemma3.gguf", RopeScaling("yarn", 4.0), extended=True)
    kinds = {(a.window > 0, a.rope.scaling) for a in spec.attention if a.rope is not None}
    assert kinds == {(True, "none"), (False, "yarn")}


def _file(path: Path, rope: RopeScaling) -> Callable[[], ModelSpec]:
    return lambda: spec_of(path, rope)


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda: RopeScaling("dynamic"), RequestError, "'dynamic'.*none, linear, yarn"),
        (lambda: RopeScaling("yarn", 1.0), RequestError, "factor of 1 is not.*more than 1"),
        (lambda: RopeScaling("yarn", float("nan")), RequestError, "factor of nan"),
        (lambda: RopeScaling("yarn", 1e9), RequestError, r"factor of 1e\+09"),
        (lambda: RopeScaling("yarn", 4.0, 0), RequestError, "original context of 0"),
        (lambda: RopeScaling("none", 4.0), RequestError, "'none' has no factor"),
        (
            _file(FIXTURES / "qwen3.gguf", RopeScaling("yarn")),
            RequestError,
            r"context is unknown.*no scaling factor.*RopeScaling\(factor=",
        ),
        (
            _file(FIXTURES / "deepseek2v3.gguf", RopeScaling(factor=1.5)),
            RequestError,
            r"would be.*it is.*RopeScaling\(always=True",
        ),
        (
            _file(FIXTURES / "phi3long.gguf", RopeScaling("yarn", 4.0)),
            UnsupportedError,
            "LongRoPE",
        ),
        (
            _file(FIXTURES / "gpt2.gguf", RopeScaling("yarn", 4.0)),
            UnsupportedError,
            "the model has none",
        ),
    ],
)
def test_impossible_scalings_are_refused_with_a_reason(
    ask: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ask()


def test_the_plans_of_both_lengths_share_weights_and_cache() -> None:
    from zinc.backends import api
    from zinc.plan.planner import make_plan

    null = api.create("null")
    for name, rope in (("phi3long", None), ("qwen3yarn", None), ("deepseek2v3", DOUBLE)):
        with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
            graphs = [load(file, rope=rope, extended=extended)[1] for extended in (False, True)]
            short, long = (make_plan(g, null, max_tokens=8, max_outputs=1) for g in graphs)
        assert short.weights == long.weights
        assert short.states == long.states
        assert short.hash != long.hash
