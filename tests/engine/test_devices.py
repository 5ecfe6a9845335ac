"""Models on several devices that one option names: what they answer, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine.test_device_map import FIXTURES, GREEDY, SmallDevice, opened, talk
from present import computing

from zinc import LLM, DeviceMap
from zinc.backends import api
from zinc.backends.capabilities import DeviceInfo, DeviceKind
from zinc.backends.plans import SplitPlan, Transfer
from zinc.backends.split import SplitBackend
from zinc.core.errors import DeviceError, MemoryLimitError, RequestError, ZincError
from zinc.engine.load import bandwidth, division, link, memory, planning
from zinc.engine.load.bandwidth import Bandwidth
from zinc.engine.load.division import divide_over
from zinc.engine.load.link import all_reduce_seconds
from zinc.engine.load.memory import RESERVE_SHARE
from zinc.engine.load.options import LoadOptions
from zinc.engine.load.planning import plan_model
from zinc.engine.preemption import Rates

NAMES = [",".join([f"{name}:0"] * 2) for name in computing() if name == "vulkan"]


def load(family: str, device: str, **options: Any) -> LLM:
    given = {"kv_dtype": "f16", "batch_tokens": 64, "context": 256, **options}
    backend = {} if "," in device else {"backend": device.partition(":")[0]}
    return LLM(FIXTURES / f"{family}.gguf", options={"device": device}, **backend, **given)


@pytest.mark.parametrize("names", ["cpu,cpu", *NAMES])
def test_a_conversation_on_several_devices(names: str) -> None:
    """Shared and copied blocks and restored states are on every device."""
    answers = []
    for device in (names, names.partition(",")[0]):
        with load("qwen35moe", device) as llm:
            answers.append(talk(llm))
            assert (llm.backend.split is not None) == ("," in device)
    assert answers[0] == answers[1]
    assert answers[0][1][1] > 64  # tokens from the prefix cache


@pytest.mark.parametrize("name", ["qwen35moe", "gemma4e"])
def test_a_conversation_on_devices_that_divide_every_layer(name: str) -> None:
    """The prefix cache has the heads of each device, and what it restores gives the same tokens."""
    answers = []
    for prefix_cache in (True, False):
        with load(
            name, "cpu,cpu", device_map=DeviceMap(split="tensor"), prefix_cache=prefix_cache
        ) as llm:
            answers.append(talk(llm))
            assert llm.choice.messages == ["every layer divided, 50% on cpu, 50% on cpu #2"]
    assert [tokens for tokens, _ in answers[0]] == [tokens for tokens, _ in answers[1]]
    assert answers[0][1][1] > 64 > answers[1][1][1] == 0


@pytest.mark.parametrize(("seconds", "says"), [(0.0, "every layer divided"), (1.0, "layers 0-1")])
def test_the_division_that_is_estimated_to_be_faster_is_chosen(
    seconds: float, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "all_reduce_seconds", lambda *_: seconds)
    monkeypatch.setattr(bandwidth, "bandwidth_of", lambda _: Bandwidth(1e6, "2026-01-01"))
    with load("qwen3", "cpu,cpu", device_map=DeviceMap(split="auto")) as llm:
        (message,) = llm.choice.messages
        assert message.startswith(says)
        assert "ms by tensor" in message


@pytest.mark.parametrize(
    "names", [("cpu", "cpu"), ("cpu", "ref"), *(("vulkan",) * 2 for _ in NAMES)]
)
def test_the_time_to_add_up_a_row_is_measured(names: tuple[str, ...]) -> None:
    devices = [api.create(name, options={"instance": str(i)}) for i, name in enumerate(names)]
    assert 0 < all_reduce_seconds(devices, 64) < 10


def test_suffix_drafts_are_rolled_back_on_every_device() -> None:
    """Rejected drafts roll recurrent states back; the tokens stay those without drafts."""
    prompt = [5, 6, 7, 8, 9] * 8
    texts = []
    for speculate in ("suffix", "off"):
        with load("qwen35moe", "cpu,cpu,cpu", speculate=speculate) as llm:
            answer = llm.generate(prompt, GREEDY, max_tokens=40)
            texts.append(answer.token_ids)
            if speculate == "suffix":
                assert llm.engine.speculation is not None
    assert texts[0] == texts[1]


def test_the_cache_on_disk_belongs_to_a_division(tmp_path: Path) -> None:
    cached = []
    for shares in ((1, 1), (1, 1), (1, 3)):
        with load(
            "qwen35moe", "cpu,cpu", device_map=DeviceMap(shares=shares), cache_dir=tmp_path
        ) as llm:
            answer = llm.generate(list(range(3, 75)), GREEDY)
            cached.append(answer.timings.cached_tokens)
    assert cached[0] == cached[2] == 0
    assert cached[1] >= 64


@pytest.mark.parametrize(
    "names", ["cpu,cpu,cpu", *(pytest.param(x, marks=pytest.mark.every) for x in NAMES)]
)
def test_a_preempted_request_continues_from_copies_of_all_devices(
    names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "choose_pool", lambda *args: 256)
    monkeypatch.setattr(Rates, "swap_pays", lambda rates, n_tokens, n_bytes: n_tokens > 0)
    params = replace(GREEDY, max_tokens=70)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 300, 64 - i).tolist() for i in range(2)]
    with load("qwen35", names, swap_bytes=1 << 30) as llm:
        answers = llm.generate(prompts, params)
        assert llm.engine.pool.stats.swapped_in > 0
        llm.engine.pool.check()
    with load("qwen35", names.partition(",")[0], prefix_cache=False) as llm:
        for ids, answer in zip(prompts, answers, strict=True):
            assert llm.generate(ids, params).token_ids == answer.token_ids


def test_layers_that_share_a_cache_stay_together() -> None:
    with load("gemma4e", "cpu,cpu", device_map=DeviceMap(shares=(5, 1))) as llm:
        plan = llm.model.plan
        assert isinstance(plan, SplitPlan)
        states = [part.states for part in plan.parts]
        crossings = [x for x in plan.schedule if isinstance(x, Transfer)]
    assert all(states)
    assert {(x.source, x.target) for x in crossings} == {(0, 1)}


def test_a_division_stays_when_memory_is_short_for_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_has_room", lambda *_: False)
    with load("qwen35moe", "cpu,cpu", device_map=DeviceMap(shares=(1, 3))) as llm:
        assert llm.choice.messages == ["layer 0 on cpu, layers 1-3 on cpu #2"]
        assert llm.model.options.rollback == 0


def test_shares_divide_the_layers() -> None:
    with load("qwen35moe", "cpu,cpu", device_map=DeviceMap(shares=(1, 3))) as llm:
        assert llm.choice.messages == ["layer 0 on cpu, layers 1-3 on cpu #2"]


@pytest.mark.parametrize("names", NAMES)
def test_layers_on_gpus_have_larger_steps_if_there_is_memory(
    names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(division, "_speeds", lambda each: [1.0] * len(each))
    assert step_tokens(names) == 2048
    assert step_tokens(names, batch_tokens=512) == 512
    assert step_tokens("cpu,cpu") == step_tokens(names + ",cpu") == 512
    assert step_tokens(names, device_map=DeviceMap(split="tensor")) == 512
    with monkeypatch.context() as patched:  # such devices begin a step while others run another
        patched.setattr(SplitBackend, "is_linked", True)
        assert step_tokens(names) == 512
    fits = division._fits
    monkeypatch.setattr(
        division, "_fits", lambda *given: given[2].step_tokens < 2048 and fits(*given)
    )
    assert step_tokens(names) == 512


def step_tokens(names: str, **options: Any) -> int:
    with plan_model(
        LoadOptions(
            FIXTURES / "qwen3.gguf", context=4096, backend_options={"device": names}, **options
        )
    ) as planned:
        assert planned.plans[0].max_tokens == planned.options.step_tokens
        return planned.options.step_tokens


# -- Memory -------------------------------------------------------------------------------------

OPTIONS = LoadOptions(context=64, kv_dtype="f16", batch_tokens=8)


def divided(sizes: Mapping[str, float], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return how a model is divided over devices that hold these parts of its bytes."""
    model = opened("qwen3")
    with model.file as file:
        weights = sum(tensor.n_bytes for tensor in file.tensors.values()) / (1 - RESERVE_SHARE)
        made = {name: SmallDevice(int(weights * size)) for name, size in sizes.items()}
        monkeypatch.setattr(api, "create", lambda name, *_: made[name])
        return divide_over(tuple(sizes), model, OPTIONS).note


def test_a_device_with_less_memory_takes_fewer_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert divided({"cpu": 2, "ref": 2}, monkeypatch) == "layers 0-1 on cpu, layers 2-3 on ref"
    assert divided({"cpu": 2, "ref": 0.6}, monkeypatch) == "layers 0-2 on cpu, layer 3 on ref"


def test_devices_that_are_too_small_together_are_one_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(MemoryLimitError, match="does not fit on cpu and ref together: its layers"):
        divided({"cpu": 0.4, "ref": 0.4}, monkeypatch)


# -- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "device_map", "error", "says"),
    [
        ("cpu,vulkan:99", None, DeviceError, "vulkan:99|no Vulkan|not.* Vulkan"),
        ("cpu,fast", None, DeviceError, "there is no device 'fast'"),
        ("cpu,", None, RequestError, "has an empty name"),
        ("cpu,cpu,cpu,cpu,cpu", None, RequestError, "over 5 devices: it has 4 layers"),
        ("cpu,cpu", DeviceMap(shares=(1,)), RequestError, "there are 2 devices"),
        ("cpu,cpu", DeviceMap(shares=(1, -1)), RequestError, "greater than 0"),
        ("cpu,cpu", DeviceMap(shares=(1, float("inf"))), RequestError, "greater than 0"),
        ("cpu,cpu", DeviceMap(gpu_layers=1), RequestError, "number of layers cannot be set"),
        ("ref", DeviceMap(shares=(1, 1)), RequestError, "cannot be divided over devices"),
        ("ref", DeviceMap(split="tensor"), RequestError, "cannot be divided over devices"),
        ("cpu,cpu", DeviceMap(split="rows"), RequestError, "one of layer, tensor, auto"),
    ],
)
def test_devices_that_cannot_be_used_are_one_error(
    device: str, device_map: DeviceMap | None, error: type[ZincError], says: str
) -> None:
    with pytest.raises(error, match=says):
        load("qwen35moe", device, device_map=device_map)


def test_a_gpu_is_not_named_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [DeviceInfo(f"vulkan:{i}", "Card", DeviceKind.DISCRETE, "1") for i in range(2)]
    monkeypatch.setattr(api, "devices", lambda name: gpus if name == "vulkan" else [])
    monkeypatch.setattr(api, "create", lambda *_: api.kernels("ref"))
    with pytest.raises(DeviceError, match="vulkan:1 is named twice"):
        load("qwen35moe", "vulkan:1,vulkan:1")
    with pytest.raises(DeviceError, match="more than one device is called 'card'"):
        load("qwen35moe", "vulkan:0,card", backend="vulkan")
