"""Loading a draft model: vocabularies, modes and memory."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from models.harness import FIXTURES, rewrite
from present import computing

from zinc import LLM
from zinc.core.errors import MemoryLimitError, RequestError, UnsupportedError, ZincError
from zinc.engine.load import memory
from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.engine.load.options import LoadOptions
from zinc.engine.load.planning import plan_model
from zinc.engine.load.vocabulary import check_vocabulary
from zinc.formats.gguf import GGUFFile

pytestmark = pytest.mark.skipif("cpu" not in computing(), reason="the CPU backend is not built")

QWEN = FIXTURES / "qwen3.gguf"
OPTIONS = LoadOptions(QWEN, backend="cpu", threads=1, context=128, draft=QWEN)
UNUSED = 5


def compare(one: Path, other: Path) -> None:
    with GGUFFile.open(one) as draft, GGUFFile.open(other) as model:
        check_vocabulary(draft, model)


def with_tokens(target: Path, changes: dict[int, str], unused: tuple[int, ...] = ()) -> Path:
    """Write a fixture with other tokens."""
    with GGUFFile.open(QWEN) as file:
        tokens = list(file.metadata["tokenizer.ggml.tokens"])
        types = list(file.metadata["tokenizer.ggml.token_type"])
    for i, text in changes.items():
        tokens[i] = text
    for i in unused:
        tokens[i], types[i] = f"[PAD{i}]", UNUSED
    keys = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    return rewrite(QWEN, target, metadata=keys)


# -- vocabularies ---------------------------------------------------------------------------------


def test_models_with_the_same_tokens_match(tmp_path: Path) -> None:
    compare(QWEN, QWEN)
    compare(FIXTURES / "qwen2.gguf", QWEN)
    compare(with_tokens(tmp_path / "m.gguf", {}), QWEN)


def test_the_error_names_files_and_tokens(tmp_path: Path) -> None:
    other = with_tokens(tmp_path / "other.gguf", dict.fromkeys((300, 301, 305, 400), "new"))
    with pytest.raises(RequestError) as failure:
        compare(other, QWEN)
    text = str(failure.value)
    assert text.startswith("other.gguf cannot draft tokens for qwen3.gguf: 4 of 512 tokens differ")
    assert "300 ('new' and " in text
    assert "305" in text
    assert "400" not in text, "the first three are named"
    assert "\n" not in text


def test_padding_may_differ(tmp_path: Path) -> None:
    padded = with_tokens(tmp_path / "padded.gguf", {}, unused=(510, 511))
    also = with_tokens(tmp_path / "also.gguf", {510: "other"}, unused=(510, 511))
    compare(padded, also)
    with pytest.raises(RequestError, match=r"2 of 512 tokens differ.*300 \(unused and "):
        compare(with_tokens(tmp_path / "used.gguf", {}, unused=(300, 301)), QWEN)
    with GGUFFile.open(padded) as file:
        shorter = {
            f"tokenizer.ggml.{key}": list(file.metadata[f"tokenizer.ggml.{key}"])[:510]
            for key in ("tokens", "token_type")
        }
        view = file.with_metadata(shorter)
        check_vocabulary(view, file)
        check_vocabulary(file, view)


def test_merges_are_compared(tmp_path: Path) -> None:
    with GGUFFile.open(QWEN) as file:
        merges = list(file.metadata["tokenizer.ggml.merges"])
        view = file.with_metadata({"tokenizer.ggml.merges": merges[::-1]})
        with pytest.raises(RequestError, match=r"differ in tokenizer\.ggml\.merges"):
            check_vocabulary(view, file)


# -- modes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculate": "off"}, "the speculation mode 'off' uses no draft model"),
        ({"speculate": "suffix"}, "the speculation mode 'suffix' uses no draft model"),
        ({"speculate": "draft", "draft": None}, "there is no draft model"),
        ({"draft": EMBEDDED_MODEL}, "cannot draft tokens for qwen3.gguf: 7,"),
        ({"draft": FIXTURES / "missing.gguf"}, "missing.gguf"),
    ],
)
def test_what_cannot_be_drafted_is_an_error(changes: dict, message: str) -> None:
    with pytest.raises(ZincError, match=message):
        plan_model(replace(OPTIONS, **changes))


def test_a_backend_on_which_drafts_may_change_answers_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="drafts may change answers on the backend ref"):
        plan_model(replace(OPTIONS, backend="ref"))
    with plan_model(replace(OPTIONS, backend="ref", speculate="draft")) as planned:
        assert planned.draft is not None


def test_a_model_and_its_draft_model_answer() -> None:
    with LLM(EMBEDDED_MODEL, backend="cpu", draft=EMBEDDED_MODEL, context=256) as llm:
        prompt = "Once upon a time there was a small fox who"
        answer = llm.generate(prompt, temperature=0, max_tokens=20)
        plain = llm.generate(prompt, temperature=0, max_tokens=20, speculate=False)
        assert answer.token_ids == plain.token_ids
        assert llm.memory.draft_bytes > llm.memory.weights_bytes
        assert llm.memory.total_bytes > llm.memory.draft_bytes + llm.memory.weights_bytes


# -- memory ---------------------------------------------------------------------------------------


def test_without_memory_for_the_draft_model_it_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    available = 1 << 20
    monkeypatch.setattr(memory, "available_memory_bytes", lambda backend=None: available)
    while True:
        with plan_model(replace(OPTIONS, draft=None)) as planned, suppress(MemoryLimitError):
            planned.cache_size()
            break
        available += 32 << 10
    with plan_model(OPTIONS) as planned:
        assert planned.draft is None
        planned.cache_size()
    assert "without the draft model" in caplog.text
    demanded = plan_model(replace(OPTIONS, speculate="draft"))
    with demanded, pytest.raises(MemoryLimitError):
        demanded.cache_size()
    available *= 3
    with plan_model(OPTIONS) as planned:
        assert planned.draft is not None


def test_the_context_leaves_room_for_the_cache_of_the_draft_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "available_memory_bytes", lambda backend=None: 8 << 20)
    options = replace(OPTIONS, context=None)
    with plan_model(replace(options, draft=None)) as planned:
        alone = planned.cache_size()
    with plan_model(options) as planned:
        assert planned.draft is not None
        both = planned.cache_size()
        (budget,) = planned.budgets()
    assert both.tokens < alone.tokens
    assert budget.draft_bytes(both.context) > 0
