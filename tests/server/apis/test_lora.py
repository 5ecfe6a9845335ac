"""LoRA adapters on a server: /lora-adapters of llama.cpp, and the field `lora` of every API."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine.adapter_files import random_pairs, write_adapter
from serving import LOAD, MODEL, Running, running

from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.engine.load.options import AdapterOption
from zinc.formats.gguf import GGUFFile
from zinc.server.config import ModelSource


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with two adapters, of which the first is in use, and a second model without."""
    folder = tmp_path_factory.mktemp("adapters")
    with GGUFFile.open(EMBEDDED_MODEL) as file:
        arch = file.str("general.architecture")
    options = []
    for seed, scale in ((0, 1.0), (1, 0.0)):
        pairs = random_pairs(EMBEDDED_MODEL, ("attn_q", "attn_v", "ffn_down"), seed=seed)
        path = folder / f"{seed}.gguf"
        changes = {"adapter.lora.task_name": "rhymes"} if seed else {}
        write_adapter(path, pairs, arch, alpha=8.0, changes=changes)
        options.append(AdapterOption(path, scale))
    models = (ModelSource(MODEL, None), ModelSource("other", None))
    with running(load=replace(LOAD, lora=tuple(options)), models=models) as found:
        yield found


PROMPT = "Once upon a time"
FIELDS = {"prompt": PROMPT, "n_predict": 8, "temperature": 0}


def text(server: Running, lora: Any = None, **more: Any) -> str:
    fields = {**FIELDS, **({} if lora is None else {"lora": lora}), **more}
    found = server.post("/completion", fields)
    assert found.status == 200, found.body
    return str(found.json["content"])


def scales(server: Running, model: str = MODEL) -> list[float]:
    return [each["scale"] for each in server.get(f"/lora-adapters?model={model}").json]


def test_the_list_names_adapters_and_scales(adapted: Running):
    first, second = adapted.get(f"/lora-adapters?model={MODEL}").json
    assert (first["id"], first["scale"], Path(first["path"]).name) == (0, 1.0, "0.gguf")
    assert (second["id"], second["scale"], second["task_name"]) == (1, 0.0, "rhymes")
    assert second["prompt_prefix"] == ""
    assert adapted.get("/lora-adapters?model=other").json == []


def test_requests_choose_adapters(adapted: Running):
    """The model without adapters is the oracle of a request that uses none."""
    plain = text(adapted, model="other")
    none = text(adapted, [{"id": 0, "scale": 0.0}], model=MODEL)
    first, second = (text(adapted, [{"id": i, "scale": 1.0}], model=MODEL) for i in (0, 1))
    assert none == plain
    assert len({plain, first, second}) == 3
    assert text(adapted, model=MODEL) == text(adapted, [], model=MODEL) == first


def test_other_apis_have_the_field(adapted: Running):
    plain = text(adapted, model="other")
    for lora, same in (([{"id": 1, "scale": 0}], True), ([{"id": 1, "scale": 1.0}], False)):
        fields = {"model": MODEL, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "lora": lora}
        found = adapted.post("/v1/completions", fields).json["choices"][0]["text"]
        assert (found == plain) is same
    vectors = [
        adapted.post("/v1/embeddings", {"model": name, "input": PROMPT, **more}).json["data"][0]
        for name, more in (
            ("other", {}),
            (MODEL, {}),
            (MODEL, {"lora": [{"id": 1, "scale": 0.0}]}),
        )
    ]
    assert vectors[0]["embedding"] == vectors[2]["embedding"] != vectors[1]["embedding"]


def test_scales_can_be_set_for_later_requests(adapted: Running):
    first, second = (text(adapted, [{"id": i, "scale": 1.0}], model=MODEL) for i in (0, 1))
    try:
        found = adapted.post(f"/lora-adapters?model={MODEL}", [{"id": 1, "scale": 1}])
        assert (found.status, found.json) == (200, {"success": True})
        assert scales(adapted) == [0.0, 1.0]
        assert text(adapted, model=MODEL) == second
    finally:
        adapted.post(f"/lora-adapters?model={MODEL}", [{"id": 0, "scale": 1.0}])
    assert scales(adapted) == [1.0, 0.0]
    assert text(adapted, model=MODEL) == first


def test_wrong_adapters_are_refused(adapted: Running):
    for lora, param in (
        ([{"id": 2, "scale": 1.0}], "lora"),
        ([{"id": -1, "scale": 1.0}], "lora"),
        ([{"id": 0, "scale": 1e30}], "lora"),
        ([{"id": 0}], "lora[0].scale"),
        ([{"id": "0", "scale": 1.0}], "lora[0].id"),
        ("0", "lora"),
    ):
        found = adapted.post("/completion", {**FIELDS, "model": MODEL, "lora": lora})
        assert found.status == 400
        assert found.json["error"]["param"] == param
    found = adapted.post(
        "/completion", {**FIELDS, "model": "other", "lora": [{"id": 0, "scale": 1}]}
    )
    assert found.status == 400
    assert "there is no LoRA adapter 0: none is loaded" in found.json["error"]["message"]
    for body in ([{"id": 5, "scale": 1.0}], {"id": 0, "scale": 1.0}, [5], [{"scale": 1.0}]):
        found = adapted.post(f"/lora-adapters?model={MODEL}", body)
        assert found.status == 400, body
    assert scales(adapted) == [1.0, 0.0]
