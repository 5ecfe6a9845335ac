"""The second turn of a conversation on real models: the same tokens, and little to run.

The fixtures are tiny random models of a dense, a sliding-window and three hybrid families.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from effort import on_backends
from models.harness import rewrite
from present import computing

from zinc import LLM, SamplingParams
from zinc.formats.gguf import GGUFFile

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"
# A folder with trained models that are too large for the repository.
MODELS = Path(os.environ.get("ZINC_TEST_MODELS", "models"))
TRAINED_HYBRID = MODELS / "zinc-demo-moe-48m-q8_0.gguf"
# Backends that need not compile kernels for a model first.
QUICK = [name for name in computing() if name != "vulkan"]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
FAMILIES = ("qwen3", "gemma3", "gptoss", "qwen35", "qwen3next", "kimilinear", "deepseek2")


def prompt(llm, n, seed):
    return np.random.default_rng(seed).integers(3, llm.spec.vocab, n).tolist()


@pytest.fixture
def model_path(family, tmp_path):
    """Return the path of a fixture, or of a copy with a vocabulary if the fixture has none."""
    path = FIXTURES / f"{family}.gguf"
    with GGUFFile.open(path) as file:
        n_vocab = file.tensors["token_embd.weight"].shape[0]
        if "tokenizer.ggml.tokens" in file.metadata:
            return path
    vocabulary = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [f"<{i}>" for i in range(n_vocab)],
        "tokenizer.ggml.scores": [0.0] * n_vocab,
        "tokenizer.ggml.token_type": [1] * n_vocab,
    }
    return rewrite(path, tmp_path / path.name, metadata=vocabulary)


def run_both(path, backend, talk, **options):
    """Return the answers with and without the prefix cache, and the cached tokens of the last."""
    answers = []
    for prefix_cache in (True, False):
        with LLM(path, backend=backend, prefix_cache=prefix_cache, **options) as llm:
            answers.append(talk(llm))
            llm.engine.pool.check()
            assert all(a.n_held == 0 for a in llm.engine.allocators)
    return answers


def three_turns(llm):
    turns = []
    ids = prompt(llm, 150, 0)
    for turn in range(3):
        answer = llm.generate(ids, GREEDY)
        turns.append((answer.token_ids, answer.timings))
        ids = [*ids, *answer.token_ids, *prompt(llm, 30, turn + 1)]
    return turns


@pytest.mark.alike(5)
@pytest.mark.parametrize(
    ("family", "backend"),
    on_backends(FAMILIES, ("ref", *computing()), everywhere=("qwen35",)),
)
def test_later_turns_run_only_what_is_new(model_path, backend):
    cached, plain = run_both(model_path, backend, three_turns, batch_tokens=96)
    assert [tokens for tokens, _ in cached] == [tokens for tokens, _ in plain]
    assert [t.cached_tokens for _, t in plain] == [0, 0, 0]
    assert [t.cached_tokens for _, t in cached] == [0, 150 + 7, 150 + 8 + 30 + 7]


@pytest.mark.parametrize(
    ("family", "backend"),
    on_backends(("gemma3", "qwen35"), computing(), everywhere=()),
)
def test_a_branch_of_a_conversation_gets_its_own_tokens(family, backend):
    """The second prompt differs within a block that the first one filled."""

    def talk(llm):
        stem = prompt(llm, 70, 0)
        prompts = [[*stem, *prompt(llm, 25, seed)] for seed in (1, 2, 1, 3)]
        return [llm.generate(p, GREEDY).token_ids for p in prompts]

    cached, plain = run_both(FIXTURES / f"{family}.gguf", backend, talk, batch_tokens=64)
    assert cached == plain
    assert cached[0] == cached[2]


def test_memory_is_what_is_allocated_and_windows_are_small():
    with LLM(FIXTURES / "gemma3.gguf", backend="ref", context=4096, batch_tokens=64) as llm:
        full, sliding = sorted(llm.engine.pool.groups, key=lambda g: g.window)
        assert sliding.window == 16
        assert sliding.n_blocks * 3 < full.n_blocks
        layers = list(llm.model.cache.layers.values())
        assert llm.memory.kv_bytes == sum(x.k.nbytes + x.v.nbytes for x in layers)
        assert {len(x.k) for x in layers} == {full.n_blocks, sliding.n_blocks}


@pytest.mark.parametrize("backend", QUICK)
def test_a_chat_with_the_embedded_model_reuses_earlier_messages(backend):
    first = [
        {"role": "system", "content": "You are a helpful assistant. " * 12},
        {"role": "user", "content": "Tell me about the sea."},
    ]
    short = replace(GREEDY, max_tokens=10)

    def talk(llm):
        one = llm.chat(first, short, enable_thinking=False)
        again = [*first, {"role": "assistant", "content": one.text}]
        again.append({"role": "user", "content": "And about the mountains?"})
        return [one, llm.chat(again, short, enable_thinking=False)]

    # Otherwise a near-tie may flip if the prompt is cut into other chunks.
    cached, plain = run_both(None, backend, talk, options={"batch_invariant": "true"})
    assert [a.token_ids for a in cached] == [a.token_ids for a in plain]
    assert cached[1].timings.cached_tokens >= cached[0].timings.prompt_tokens - 12


@pytest.mark.parametrize(
    ("family", "backend"),
    [
        *(("embedded", name) for name in QUICK),
        *on_backends(("qwen35",), computing(), everywhere=()),
    ],
)
def test_eight_answers_to_one_prompt_run_it_once(family, backend):
    path = None if family == "embedded" else FIXTURES / f"{family}.gguf"
    short = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with LLM(path, backend=backend, context=2048) as llm:
        ids = prompt(llm, 150, 0)
        answers = llm.generate([ids] * 8, short)
        llm.engine.pool.check()
    with LLM(path, backend=backend, context=2048, prefix_cache=False) as llm:
        alone = llm.generate(ids, short)
    assert [a.token_ids for a in answers] == [alone.token_ids] * 8
    # A hybrid starts after the last token that may end a turn.
    assert sum(150 - a.timings.cached_tokens for a in answers) <= 150 + 7 * 8


@pytest.mark.parametrize("backend", computing())
def test_a_chat_with_a_trained_hybrid_reuses_earlier_messages(backend):
    if not TRAINED_HYBRID.exists():
        pytest.skip("ZINC_TEST_MODELS names no folder with zinc-demo-moe-48m-q8_0.gguf")
    text = "The ship left the harbour at dawn and the wind was fair. " * 60
    first = [{"role": "user", "content": text}]

    def talk(llm):
        one = llm.chat(first, GREEDY, enable_thinking=False)
        again = [*first, {"role": "assistant", "content": one.text}]
        again.append({"role": "user", "content": "And about the mountains?"})
        return [one, llm.chat(again, GREEDY, enable_thinking=False)]

    cached, plain = run_both(TRAINED_HYBRID, backend, talk)
    assert [a.token_ids for a in cached] == [a.token_ids for a in plain]
    assert cached[1].timings.cached_tokens >= cached[0].timings.prompt_tokens - 12


@pytest.mark.parametrize(
    ("family", "backend"),
    on_backends(("gemma3", "qwen35"), ("ref", *computing()), everywhere=()),
)
def test_a_conversation_continues_after_a_restart(family, backend, tmp_path):
    path = FIXTURES / f"{family}.gguf"
    short = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    options = {"backend": backend, "context": 512, "kv_dtype": "f16"}
    with LLM(path, **options, cache_dir=tmp_path) as llm:
        ids = prompt(llm, 150, 0)
        ids += llm.generate(ids, short).token_ids
    (folder,) = (entry for entry in tmp_path.iterdir() if entry.is_dir())
    ids += [7, 8, 9]
    with LLM(path, **options, cache_dir=tmp_path) as llm:
        answer = llm.generate(ids, short)
    with LLM(path, **options) as llm:
        assert llm.generate(ids, short).token_ids == answer.token_ids
    assert answer.timings.cached_tokens == 154
    with LLM(path, **{**options, "kv_dtype": "q8_0"}, cache_dir=tmp_path) as llm:
        assert llm.generate(ids, short).timings.cached_tokens == 0  # a file of its own
    assert sum(entry.is_dir() for entry in tmp_path.iterdir()) == 2
    assert any(folder.iterdir())


def test_the_prefix_cache_survives_a_killed_process(tmp_path):
    """The process is killed during its second answer, so it cannot close anything."""
    program = f"""
import sys, time
from zinc import LLM, SamplingParams
from zinc.formats.gguf import GGUFFile
llm = LLM({str(FIXTURES / "qwen35.gguf")!r}, context=2048, cache_dir={str(tmp_path)!r})
short = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
print(llm.generate(list(range(3, 153)), short).token_ids, flush=True)
for chunk in llm.stream(list(range(9, 300)), SamplingParams(max_tokens=1500, ignore_eos=True)):
    if chunk.token_ids and llm.engine.disk.has_pending:
        time.sleep(0.04)  # a step hands over what is new, and the disk may be slow
    elif chunk.token_ids:
        print("written", flush=True)
        sys.stdin.read()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", program], **pipes)
    assert process.stdout is not None
    tokens = json.loads(process.stdout.readline())
    assert process.stdout.readline() == "written\n"
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    short = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    path = FIXTURES / "qwen35.gguf"
    with LLM(path, context=2048, cache_dir=tmp_path) as llm:
        again = llm.generate([*range(3, 153), *tokens, 7], short)
        other = llm.generate([*range(9, 300), 5], short)
    with LLM(path, context=2048) as llm:
        assert again.token_ids == llm.generate([*range(3, 153), *tokens, 7], short).token_ids
        assert other.token_ids == llm.generate([*range(9, 300), 5], short).token_ids
    assert again.timings.cached_tokens == 154
    assert other.timings.cached_tokens >= 290 - 1
