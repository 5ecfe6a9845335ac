"""The commands pull, list, show, rm and ps, and names where a model is loaded."""

from __future__ import annotations

import io
import json
import os
import re
import sys

import pytest
from cli.session import Session
from hub.fake_hub import FakeHub

from zinc.cli import downloads
from zinc.cli.main import main
from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.hub.events import Transferred
from zinc.llm import LLM

REPO = "org/demo-GGUF"
MODEL = f"{REPO}:Q4_K_M"
GGUF = EMBEDDED_MODEL.read_bytes()
QUICK = ("--temperature", "0", "--max-tokens", "2", "--backend", "cpu")


@pytest.fixture
def demo(hub, home) -> FakeHub:
    """A hub that has the embedded model."""
    hub.add(REPO, {"demo-Q4_K_M.gguf": GGUF, "mmproj-F16.gguf": b"image encoder"})
    hub.add_ollama("library/demo", "latest", GGUF)
    return hub


@pytest.fixture
def zinc(capsys, monkeypatch):
    """Return a function that runs a command and returns its status, stdout and stderr."""

    def run(*argv: str):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        capsys.readouterr()
        status = main(list(argv))
        return status, *capsys.readouterr()

    return run


def test_pull_prints_the_path_and_run_uses_it(demo, zinc):
    status, out, err = zinc("pull", MODEL)
    assert status == 0
    assert out.endswith("demo-Q4_K_M.gguf\n")
    assert f"zinc: {MODEL} is ready" in err
    assert "SHA-256 right" in err
    status, out, err = zinc("run", MODEL, "Hello", *QUICK)
    assert (status, bool(out)) == (0, True)
    with LLM(MODEL, backend="cpu", context=64) as llm:
        assert llm.path.name == "demo-Q4_K_M.gguf"


def test_pull_chooses_what_fits_from_the_header_of_the_file(demo, zinc):
    status, _, err = zinc("pull", REPO, "--only-model")
    assert status == 0
    assert re.search(r"are available; decode up to [\d,]+ tokens/s\)", err)
    assert not any("mmproj" in path for path, _ in demo.requests)
    header = next(h["range"] for path, h in demo.requests if path.startswith("/cdn/"))
    assert header == "bytes=0-262143"  # the header alone, before the file


def test_a_model_that_zinc_cannot_run_is_not_downloaded(demo, zinc, home):
    demo.add("org/other", {"other-Q4_K_M.gguf": GGUF.replace(b"qwen3", b"qwenX")})
    status, _, err = zinc("pull", "org/other")
    assert status == 1
    assert "qwenX" in err
    assert not home.hugging_face.exists()


def test_json_prints_one_event_a_line(demo, zinc):
    status, out, _ = zinc("pull", MODEL, "--json")
    events = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert events[0]["event"] == "chosen"
    assert events[0]["files"] == ["demo-Q4_K_M.gguf", "mmproj-F16.gguf"]
    assert {event["event"] for event in events} == {"chosen", "progress", "verified", "finished"}
    assert events[-1]["path"].endswith("demo-Q4_K_M.gguf")


def test_pull_of_a_modelfile_gets_the_model_after_from(demo, zinc, home, tmp_path):
    path = tmp_path / "Modelfile"
    path.write_text(f"FROM {MODEL}\nSYSTEM Be brief.\n")
    assert zinc("show", str(path))[0] == 1
    assert zinc("pull", str(path))[0] == 0
    assert "chat template" in zinc("show", str(path))[1]
    path.write_text(f"FROM {EMBEDDED_MODEL}\n")
    assert "nothing to download" in zinc("pull", str(path))[2]


def test_list_show_and_rm(demo, zinc, home):
    assert "no model yet" in zinc("list")[1]
    zinc("pull", MODEL)
    zinc("pull", f"ollama:{demo.url}/library/demo")
    (row,) = [r for r in json.loads(zinc("list", "--json")[1]) if r["program"] == "Hugging Face"]
    assert (row["name"], row["bytes"], row["fits"]) == (MODEL, len(GGUF), True)
    (memory,) = row["memories"]
    purposes = ("weights_bytes", "kv_bytes", "state_bytes", "scratch_bytes")
    assert memory["needed_bytes"] == sum(memory[purpose] for purpose in purposes)
    planned = json.loads(zinc("plan", MODEL, "--json")[1])
    assert planned["memories"][0]["needed_bytes"] == memory["needed_bytes"]
    inspected = json.loads(zinc("inspect", MODEL, "--json")[1])["memory"]
    assert inspected["memories"][0]["needed_bytes"] == memory["needed_bytes"]
    assert row["decode_tokens_per_s"] > 0
    assert row["decode"] == planned["decode"] == inspected["decode"]
    assert re.search(rf"{MODEL}.* up to [\d,.]+ tokens/s", zinc("list")[1])
    status, out, _ = zinc("show", MODEL)
    assert status == 0
    assert "chat template" in out
    assert "weights 18.6 MB" in out

    status, _, err = zinc("rm", MODEL)
    assert status == 0
    assert "18." in err
    assert zinc("rm", MODEL)[0] == 1
    assert not list(home.hugging_face.rglob("*.gguf"))
    assert not [p for p in home.hugging_face.rglob("blobs/*") if p.stat().st_size > 10**6]


def test_rm_of_one_quantisation_keeps_the_others(demo, zinc):
    demo.add(REPO, {"demo-Q8_0.gguf": GGUF + b"\0"})
    for quantisation in ("Q4_K_M", "Q8_0"):
        assert zinc("pull", f"{REPO}:{quantisation}")[0] == 0
    assert zinc("rm", f"{REPO}:q8_0")[0] == 0
    names = [row["name"] for row in json.loads(zinc("list", "--json")[1])]
    assert names == [MODEL]
    assert zinc("rm", REPO)[0] == 0
    assert json.loads(zinc("list", "--json")[1]) == []


def test_rm_leaves_the_files_of_other_programs(zinc, home):
    file = home.lm_studio[0] / "org" / "demo-GGUF" / "demo-Q4_K_M.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(GGUF)
    status, _, err = zinc("rm", MODEL)
    assert status == 1
    assert f"belongs to another program: it is {file}" in err
    assert file.exists()
    assert zinc("rm", str(file))[0] == 1
    assert zinc("rm", "org/none")[0] == 1


def test_show_of_a_repository_lists_its_quantisations(demo, zinc):
    status, out, _ = zinc("show", REPO)
    assert status == 0
    assert "Q4_K_M" in out
    assert "`zinc pull` takes this one" in out
    found = json.loads(zinc("show", REPO, "--json")[1])
    assert found["quantisations"][0]["recommended"] is True
    assert found["quantisations"][0]["decode_tokens_per_s"] > 0
    assert re.search(r"Q4_K_M .* up to [\d,.]+ tokens/s", out)


def test_the_catalogue_is_listed(zinc, home):
    out = zinc("list", "--catalogue")[1]
    assert "qwen3:8b" in out
    assert {"name": "qwen3:8b", "repo": "unsloth/Qwen3-8B-GGUF"} in json.loads(
        zinc("list", "--catalogue", "--json")[1]
    )


@pytest.mark.parametrize(("answer", "pulled"), [("\n", True), ("n\n", False)])
def test_a_missing_model_is_offered_on_a_terminal(demo, home, answer, pulled):
    environment = {"HF_ENDPOINT": demo.url, "HF_HUB_CACHE": str(home.hugging_face)}
    session = Session("run", MODEL, "Hello", *QUICK, **environment)
    try:
        session.expect(f"the model {MODEL} is not on this machine")
        session.expect(r"download it\? \[Y/n\] ")
        session.send(answer)
        session.expect("is ready" if pulled else "nothing was downloaded")
        assert (session.wait() == 0) is pulled
    finally:
        session.close()
    assert bool(list(home.hugging_face.rglob("*.gguf"))) is pulled


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """An agent on PATH that prints the name of the model it is started with."""
    script = tmp_path / "bin" / "claude"
    script.parent.mkdir()
    script.write_text('#!/bin/sh\necho "agent of $ANTHROPIC_MODEL"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent), prepend=os.pathsep)


def test_launch_offers_a_missing_model(demo, home, agent):
    environment = {"HF_ENDPOINT": demo.url, "HF_HUB_CACHE": str(home.hugging_face)}
    session = Session("launch", "claude", "--model", MODEL, **environment)
    try:
        session.expect(r"download it\? \[Y/n\] ")
        session.send("\n")
        session.expect(f"starting a server for {MODEL}")
        session.expect(f"agent of {MODEL}")
        assert session.wait() == 0
    finally:
        session.close()


def test_without_a_terminal_a_missing_model_is_an_error(demo, zinc, agent):
    status, _, err = zinc("chat", MODEL)
    assert (status, err) == (
        1,
        f"zinc: the model {MODEL} is not on this machine. Run `zinc pull {MODEL}`.\n",
    )
    status, _, err = zinc("serve", MODEL, "--port", "0")
    assert status == 1
    assert "or serve with --pull" in err
    status, _, err = zinc("launch", "claude", "-m", MODEL)
    assert (status, f"Run `zinc pull {MODEL}`" in err, "starting" in err) == (1, True, False)


def test_serve_pulls_and_names_models_as_they_were_given(demo, home, monkeypatch):
    import argparse

    from zinc.cli import serve

    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    argv = ["--pull", "--kv-dtype", "f16", MODEL, f"mine={MODEL}", str(EMBEDDED_MODEL)]
    config = serve.config(parser.parse_args(argv))
    assert [source.name for source in config.models] == [MODEL, "mine", EMBEDDED_MODEL.stem]
    assert config.models[0].path.read_bytes() == GGUF


def test_ps_lists_the_models_of_a_server(zinc, hub):
    status, _, err = zinc("ps", "--url", "http://127.0.0.1:9")
    assert status == 1
    assert err.count("127.0.0.1") == 1
    assert "is not an address" in zinc("ps", "--url", "nonsense")[2]
    assert "answers with status 404" in zinc("ps", "--url", hub.url)[2]


def test_ps_of_a_running_server(zinc):
    pytest.importorskip("uvicorn")
    from server.serving import running

    with running() as server:
        status, out, _ = zinc("ps", "--url", server.url)
        assert status == 0
        assert "loaded" in out or "ready" in out
        (model,) = json.loads(zinc("ps", "--url", server.url, "--json")[1])
        assert model["meta"]["memory_bytes"] > 0


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Transferred("a/m.gguf", 5 * 10**8, 10**9, 2.5e7, 20.0),
         "[##########..........]  50% of 1.0 GB, 25.0 MB/s, 20 s left  m.gguf"),
        (Transferred("m.gguf", 0, 10**9, 0.0, None),
         "[....................]   0% of 1.0 GB, 0 B/s  m.gguf"),
        (Transferred("m.gguf", 1, 10**12, 1e6, 9000.0),
         "[....................]   0% of 1.0 TB, 1.0 MB/s, 2 h 30 min left  m.gguf"),
    ],
)  # fmt: skip
def test_the_line_of_progress(event, expected):
    assert downloads.progress_line(event) == expected
