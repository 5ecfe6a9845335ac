"""LoRA adapters beside a model: merged weights are the oracle, and company changes no bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engine.adapter_files import (
    PROJECTIONS,
    random_pairs,
    write_adapter,
    write_merged,
)
from present import computing

from zinc import LLM, DeviceMap, SamplingParams
from zinc.core.errors import ModelError, RequestError, UnsupportedError, ZincError
from zinc.engine.load import planning
from zinc.engine.request import Request
from zinc.engine.speculative.step_times import StepTimes

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"
ADAPTERS = FIXTURES.parent / "adapters"
FAMILIES = ("llama", "qwen3", "gemma3", "phi3", "qwen35")
EVERY = pytest.mark.every
# Devices compile kernels for a model first.
DEVICES = [pytest.param(name, marks=EVERY) for name in computing() if name != "cpu"]
# Weights that adapters change, with those of fused matrices and the output.
NAMES = (*PROJECTIONS, "attn_qkv", "ssm_out", ".output")


def arch_of(family):
    from zinc.formats.gguf import GGUFFile

    with GGUFFile.open(FIXTURES / f"{family}.gguf") as file:
        return file.str("general.architecture")


@pytest.fixture
def adapter(tmp_path):
    """Return a function that writes an adapter for a fixture, from a seed."""

    def make(family, seed=0, rank=4, names=NAMES, **options):
        pairs = random_pairs(FIXTURES / f"{family}.gguf", names, rank, seed)
        path = tmp_path / f"{family}-{seed}.gguf"
        return write_adapter(path, pairs, arch_of(family), **options), pairs

    return make


def ids_of(n, seed=1, low=3, high=500):
    return np.random.default_rng(seed).integers(low, high, n).tolist()


def distance(a, b):
    return float(np.abs(a - b).max() / np.abs(b).max())


# -- the oracle ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["cpu", pytest.param("ref", marks=EVERY), *DEVICES])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_merged_weights(family, backend, adapter, tmp_path):
    """Rank 20 is no multiple of a tile, and alpha / rank is a power of two."""
    path, pairs = adapter(family, rank=20, alpha=10.0)
    other, more = adapter(family, seed=1, rank=3, alpha=None)
    model, ids = FIXTURES / f"{family}.gguf", ids_of(40)
    merged = write_merged(tmp_path / "merged.gguf", model, [(pairs, 0.5), (more, -0.5)])
    kv_dtype = "f16" if backend == "cpu" else "auto"
    with LLM(merged, backend=backend, kv_dtype=kv_dtype) as llm:
        wanted = llm.logits(ids)
    with LLM(model, backend=backend, kv_dtype=kv_dtype) as llm:
        plain = llm.logits(ids)
    lora = {path: 1.0, other: -0.5}
    with LLM(model, backend=backend, kv_dtype=kv_dtype, lora=lora) as llm:
        assert distance(llm.logits(ids), wanted) < (1e-5 if backend == "ref" else 1e-3)
        assert distance(plain, wanted) > 0.1
        llm.set_lora_scales({})
        assert np.array_equal(llm.logits(ids), plain)


@pytest.mark.parametrize("backend", ["ref", "cpu", *DEVICES])
@pytest.mark.parametrize("family", ["granite", "olmo2", "smollm3"])
def test_logits_equal_those_of_peft(family, backend):
    """llama.cpp's converter made these adapters, one of them with the token embedding."""
    ids = np.load(FIXTURES / f"{family}.npz")["tokens"].tolist()
    wanted = np.load(ADAPTERS / f"{family}.npz")["logits"]
    kv_dtype, lora = "f16" if backend == "cpu" else "auto", ADAPTERS / f"{family}.gguf"
    with LLM(FIXTURES / f"{family}.gguf", backend=backend, kv_dtype=kv_dtype, lora=lora) as llm:
        assert distance(llm.logits(ids), wanted) < (1e-5 if backend == "ref" else 1e-3)


@pytest.mark.parametrize(
    "family", ["llama", *(pytest.param(each, marks=EVERY) for each in FAMILIES[1:])]
)
@pytest.mark.parametrize("names", ["cpu,cpu,cpu", pytest.param("cpu,ref", marks=EVERY)])
def test_factors_are_divided_with_their_tensors(family, names, adapter, tmp_path):
    """Rows of b go with the rows of a tensor, columns of a with its columns."""
    path, pairs = adapter(family, rank=20, alpha=10.0)
    model, ids = FIXTURES / f"{family}.gguf", ids_of(40)
    merged = write_merged(tmp_path / "merged.gguf", model, [(pairs, 0.5)])
    with LLM(merged, backend="cpu", kv_dtype="f16") as llm:
        wanted = llm.logits(ids)
    divided = {"options": {"device": names}, "device_map": DeviceMap(split="tensor")}
    with LLM(model, kv_dtype="f16", lora=path, **divided) as llm:
        assert distance(llm.logits(ids), wanted) < 1e-3
        llm.set_lora_scales({})
        assert distance(llm.logits(ids), wanted) > 0.05


def test_factors_are_stored_as_float16_and_keep_their_range(adapter, tmp_path):
    """Factors far below the range of float16 are scaled into it."""
    model = FIXTURES / "llama.gguf"
    rng = np.random.default_rng(3)
    pairs = {
        name: (
            a * np.float32(1e-7),
            (b + rng.standard_normal(b.shape) * 0.02).astype(np.float32) * 1e6,
        )
        for name, (a, b) in random_pairs(model, PROJECTIONS, rank=6).items()
    }
    path = write_adapter(tmp_path / "small.gguf", pairs, "llama", alpha=6.0)
    merged = write_merged(tmp_path / "merged.gguf", model, [(pairs, 1.0)])
    ids = ids_of(30)
    with LLM(merged, backend="ref") as llm:
        wanted = llm.logits(ids)
    with LLM(model, backend="ref", lora=path) as llm:
        assert distance(llm.logits(ids), wanted) < 1e-3


@pytest.mark.parametrize("backend", ["ref", "cpu", *DEVICES])
def test_an_adapter_of_the_token_embedding(backend, adapter, tmp_path):
    """gemma3 scales its embedding, and its output reads the same tensor, which stays as it is."""
    model, ids = FIXTURES / "gemma3.gguf", ids_of(20)
    path, pairs = adapter("gemma3", names=("token_embd",), alpha=8.0)
    with LLM(model, backend=backend, lora=path) as llm:
        found = llm.logits(ids)
        assert any(launch.kernel == "lora" for launch in llm.plan.launches)
    (table, untied) = pairs["token_embd.weight"], tmp_path / "untied.gguf"
    write_untied(untied, model, 2.0 * table[0] @ table[1].T)
    with LLM(untied, backend=backend) as llm:
        assert distance(found, llm.logits(ids)) < (1e-5 if backend == "ref" else 1e-3)


def write_untied(path, model, change):
    """Write `model` with a changed embedding, and the old one as its output."""
    from zinc.formats.gguf import GGUFFile
    from zinc.formats.gguf_writer import GGUFWriter
    from zinc.quant.blocks import GGMLType
    from zinc.quant.encode import encode

    with GGUFFile.open(model) as file, GGUFWriter(path) as writer:
        for key, value in file.metadata.items():
            writer.add(key, value)
        for name, tensor in file.tensors.items():
            data = tensor.to_float32()
            if name == "token_embd.weight":
                writer.add_tensor(
                    "output.weight", encode(data, GGMLType.F32), GGMLType.F32, data.shape
                )
                data = data + change.astype(np.float32)
            writer.add_tensor(name, encode(data, GGMLType.F32), GGMLType.F32, data.shape)


def test_a_modelfile_names_adapters(adapter, tmp_path):
    """Paths are relative to the Modelfile, and another choice replaces them."""
    model, (first, _), (second, _) = FIXTURES / "llama.gguf", *(adapter("llama", i) for i in (0, 1))
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text(f"FROM {model}\nADAPTER ./{first.name}\n")
    ids = ids_of(9)
    for lora, same in ((None, first), (second, second)):
        with LLM(modelfile, backend="cpu", lora=lora) as llm:
            found = llm.logits(ids)
        with LLM(model, backend="cpu", lora=same) as llm:
            assert np.array_equal(found, llm.logits(ids))


# -- several at once -------------------------------------------------------------------------------

ANSWER = SamplingParams(temperature=0.7, seed=5, max_tokens=12, ignore_eos=True, logprobs=3)
USES = (None, {0: 1.0}, {1: 0.5}, {0: -0.5, 1: 1.0}, {0: 1.0})


def run(llm, prompts, uses, params=ANSWER):
    """Run prompts in one batch, each with its use of adapters; return the tokens and logprobs."""
    engine = llm.engine
    sequences = [
        engine.submit(Request(ids, params, adapters=llm.model.adapter_use(use or {})))
        for ids, use in zip(prompts, uses, strict=True)
    ]
    while not engine.idle:
        engine.step()
    assert all(s.finish_reason == "length" for s in sequences), [s.error for s in sequences]
    return [s.sampled for s in sequences]


@pytest.mark.parametrize("backend", ["cpu", *DEVICES])
@pytest.mark.parametrize("family", ["llama", "qwen35"])
def test_adapters_in_one_batch_equal_each_alone(family, backend, adapter):
    """They get the same bits, beside sequences without adapters and in chunks."""
    model = FIXTURES / f"{family}.gguf"
    files = [adapter(family, seed)[0] for seed in range(2)]
    prompts = [ids_of(n, seed=n) for n in (50, 7, 90, 33, 20)]
    options = {"backend": backend, "batch_tokens": 32, "prefix_cache": False, "speculate": "off"}
    options["options"] = {"batch_invariant": "true"}
    with LLM(model, lora=files, **options) as llm:
        together = run(llm, prompts, USES)
        alone = [run(llm, [ids], [use])[0] for ids, use in zip(prompts, USES, strict=True)]
    assert together == alone
    with LLM(model, **options) as llm:
        assert run(llm, prompts[:1], [None])[0] == together[0]
    with LLM(model, lora=files[0], **options) as llm:
        assert run(llm, prompts[1:2], [{0: 1.0}])[0] == together[1]
    assert len({tuple(x.token for x in each) for each in together}) == len(USES)


@pytest.mark.parametrize("backend", DEVICES)
def test_steps_that_sample_on_the_device_use_adapters(backend, adapter):
    """Such steps are queued before the tokens of the step before are known."""
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    logged = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=1)
    prompts, path = [ids_of(n, seed=n) for n in (9, 30)], adapter("llama")[0]
    with LLM(FIXTURES / "llama.gguf", backend=backend, lora={path: 0.0}) as llm:
        answers = [
            [[x.token for x in each] for each in run(llm, prompts, [{0: 1.0}, None], how)]
            for how in (params, logged)
        ]
    assert answers[0] == answers[1]
    assert answers[0][0] != answers[0][1]


def test_steps_without_adapters_run_the_plan_of_a_model_without_any(adapter):
    model = FIXTURES / "llama.gguf"
    with (
        LLM(model, backend="cpu") as plain,
        LLM(model, backend="cpu", lora={adapter("llama")[0]: 0.0}) as llm,
    ):
        assert llm.plan == plain.plan
        before = llm.program.work.submissions
        run(llm, [ids_of(9)], [None])
        assert llm.program.work.submissions > before
        before = llm.program.work.submissions
        run(llm, [ids_of(9)], [{0: 1.0}])
        assert llm.program.work.submissions == before


# -- prefix cache and speculation ------------------------------------------------------------------

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def test_the_prefix_cache_is_kept_for_each_use(adapter):
    files = [adapter("qwen3", seed)[0] for seed in range(2)]
    ids = ids_of(100)
    with LLM(FIXTURES / "qwen3.gguf", backend="cpu", lora=files) as llm:
        uses = ({}, {0: 1.0}, {1: 1.0}, {0: 0.5}) * 2
        answers = [llm.generate(ids, GREEDY, lora=use) for use in uses]
    cached = [answer.timings.cached_tokens for answer in answers]
    assert cached[:4] == [0] * 4
    assert min(cached[4:]) > 90


def test_the_cache_on_disk_belongs_to_the_contents_of_adapters(adapter, tmp_path):
    """Other numbers of the same adapters find it; another adapter in their place does not."""
    first, second = (adapter("qwen3", seed)[0] for seed in range(2))
    ids = ids_of(100)

    def cached(lora, use):
        options = {"backend": "cpu", "cache_dir": tmp_path / "cache"}
        with LLM(FIXTURES / "qwen3.gguf", lora=lora, **options) as llm:
            return llm.generate(ids, GREEDY, lora=use).timings.cached_tokens

    assert cached([first, second], {0: 1.0}) == 0
    assert cached([first, second], {1: 1.0}) == 0
    assert cached([second, first], {1: 1.0}) > 90
    assert cached(None, {}) == 0
    assert cached([second], {}) > 90


def test_speculation_keeps_the_text_of_an_adapter(adapter, monkeypatch):
    """Drafts come from the text itself, and steps with adapters verify them."""
    monkeypatch.setattr(StepTimes, "ratio", lambda self, rows: 1.0)  # on a busy machine too
    path, _ = adapter("llama")
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    texts = []
    for speculate in ("off", "suffix"):
        with LLM(FIXTURES / "llama.gguf", backend="cpu", lora=path, speculate=speculate) as llm:
            ids = ids_of(12) * 4
            texts.append([llm.generate(ids, params, lora=use) for use in ({0: 1.0}, {})])
    for plain, drafted in zip(*texts, strict=True):
        assert plain.token_ids == drafted.token_ids
    assert texts[0][0].token_ids != texts[0][1].token_ids
    assert texts[1][0].timings.drafted_tokens > 0


# -- bad input -------------------------------------------------------------------------------------


def error_of(lora, model=FIXTURES / "llama.gguf", kind=ZincError):
    with pytest.raises(kind) as caught:
        LLM(model, backend="ref", lora=lora).close()
    return str(caught.value)


def test_a_model_is_no_adapter_and_an_adapter_no_model(adapter):
    model = FIXTURES / "llama.gguf"
    assert "is not a LoRA adapter: its general.type is 'model'" in error_of(
        model, kind=RequestError
    )
    path, _ = adapter("llama")
    with pytest.raises(RequestError, match=r"is not a model: it is an adapter.*`lora=`"):
        LLM(path, backend="ref")


def test_an_adapter_of_another_model_is_refused(adapter):
    path, pairs = adapter("qwen3", names=("attn_q",))
    assert "for the architecture qwen3, and llama.gguf is of llama" in error_of(
        path, kind=RequestError
    )
    a, b = pairs["blk.0.attn_q.weight"]
    for name, factors, said in (
        ("blk.9.attn_q.weight", (a, b), "which llama.gguf does not have"),
        ("blk.0.attn_q.weight", (a[:, :32], b), "and the tensor is [128, 64]"),
        ("blk.0.attn_q.weight", (a, b[:64]), "and the tensor is [128, 64]"),
        ("blk.0.attn_q.weight", (a[:2], b), "and the tensor is [128, 64]"),
        ("blk.0.attn_norm.weight", (a, b), "applies adapters to plain products only"),
    ):
        write_adapter(path, {name: factors}, "llama")
        assert said in error_of(path)


def test_damaged_and_unsupported_adapters_are_refused(adapter):
    path, pairs = adapter("llama", names=("attn_q",))
    a, b = pairs["blk.0.attn_q.weight"]
    write_adapter(path, pairs, "llama", changes={"adapter.type": "control_vector"})
    assert "of type 'control_vector'" in error_of(path, kind=UnsupportedError)
    write_adapter(path, pairs, "llama", changes={"adapter.alora.invocation_tokens": [1, 2]})
    assert "activated LoRA" in error_of(path, kind=UnsupportedError)
    write_adapter(path, {}, "llama")
    assert "it changes no tensor" in error_of(path, kind=ModelError)
    for broken in (np.nan, np.inf):
        write_adapter(path, {"blk.0.attn_q.weight": (a, b * np.float32(broken))}, "llama")
        assert "beyond float16 or NaN" in error_of(path, kind=ModelError)
    write_adapter(path, pairs, "llama", alpha=float("nan"))
    assert "adapter.lora.alpha is nan" in error_of(path, kind=ModelError)


def test_half_an_adapter_and_other_tensors_are_refused(tmp_path):
    from zinc.formats.gguf_writer import GGUFWriter
    from zinc.quant.blocks import GGMLType
    from zinc.quant.encode import encode

    for tensor, said in (
        ("blk.0.attn_q.weight.lora_a", "the tensor blk.0.attn_q.weight.lora_b is missing"),
        ("blk.0.attn_norm.weight", "it replaces the tensor blk.0.attn_norm.weight"),
    ):
        path = write_adapter(tmp_path / "half.gguf", {}, "llama")
        with GGUFWriter(path) as writer:
            for key, value in (("general.architecture", "llama"), ("general.type", "adapter")):
                writer.add(key, value)
            data = np.ones((4, 64), np.float32)
            writer.add_tensor(tensor, encode(data, GGMLType.F32), GGMLType.F32, data.shape)
        assert said in error_of(path)


def test_experts_are_refused(tmp_path):
    """The adapter of an expert matrix has one pair of factors for each expert."""
    a, b = np.ones((4, 64), np.float32), np.ones((96, 4), np.float32)
    path = write_adapter(tmp_path / "moe.gguf", {"blk.0.ffn_gate_exps.weight": (a, b)}, "qwen3moe")
    said = error_of(path, FIXTURES / "qwen3moe.gguf", UnsupportedError)
    assert "applies adapters to plain products only" in said


def test_unknown_ids_and_scales_are_refused(adapter):
    with LLM(FIXTURES / "llama.gguf", backend="ref", lora=adapter("llama")[0]) as llm:
        with pytest.raises(RequestError, match=r"no LoRA adapter 1: there are 1, numbered from 0"):
            llm.generate([1, 2], GREEDY, lora={1: 1.0})
        with pytest.raises(RequestError, match=r"the scale of LoRA adapter 0 is nan"):
            llm.set_lora_scales({0: float("nan")})
        assert [each.scale for each in llm.adapters] == [1.0]
    none = pytest.raises(RequestError, match=r"no LoRA adapter 0: none is loaded")
    with LLM(FIXTURES / "llama.gguf", backend="ref") as llm, none:
        llm.generate([1, 2], GREEDY, lora={0: 1.0})
    with pytest.raises(RequestError, match="the scale of LoRA adapter 0 is inf"):
        LLM(FIXTURES / "llama.gguf", backend="ref", lora={adapter("llama")[0]: float("inf")})


def test_adapters_stay_when_memory_is_short_for_drafts(adapter, monkeypatch):
    (path, _), model, ids = adapter("qwen35"), FIXTURES / "qwen35.gguf", ids_of(40)
    with LLM(model, backend="cpu", lora=path, speculate="off") as llm:
        wanted = llm.logits(ids)
    monkeypatch.setattr(planning, "_has_room", lambda *_: False)
    with LLM(model, backend="cpu", lora=path) as llm:
        assert llm.model.options.rollback == 0
        assert np.array_equal(llm.logits(ids), wanted)
