"""dev/llama-server-tests, run on a folder with tests like those of llama.cpp."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "dev" / "llama-server-tests"

UTILS = """
import json, re, urllib.error, urllib.request

import wget

server_instances = set()


class ServerResponse:
    pass


class ServerProcess:
    server_host, api_key, pooling, n_slots, n_ctx = "127.0.0.1", "secret", None, 2, 512
    model_hf_repo, model_hf_file, model_alias = "some/model", None, "alias"
    model_url = model_file = cors_origins = chat_template = chat_template_file = None
    temperature, seed, kv_unified, debug, process = 0.0, 42, False, False, None

    def __getattr__(self, name):
        return None

    def start(self):
        raise AssertionError("llama-server is not here")

    def make_request(self, method, path, data=None, headers=None):
        body = None if data is None else json.dumps(data).encode()
        url = f"http://{self.server_host}:{self.server_port}{path}"
        request = urllib.request.Request(url, body, headers or {}, method=method)
        found = ServerResponse()
        with urllib.request.urlopen(request, timeout=60) as answer:
            found.status_code, found.headers = answer.status, dict(answer.headers)
            found.body = json.loads(answer.read())
        return found

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self._log.close()


class ServerPreset:
    @staticmethod
    def load_all():
        raise AssertionError("models are not downloaded")


def match_regex(regex, text):
    return re.search(regex, text) is not None


def download_file(url, output_file_path=None):
    raise AssertionError("nothing is downloaded")
"""

CONFTEST = """
import pytest
from utils import *


@pytest.fixture(scope="session", autouse=True)
def presets():
    ServerPreset.load_all()


@pytest.fixture
def server():
    yield ServerProcess()
    for each in set(server_instances):
        server_instances.discard(each)
        each.stop()
"""

TESTS = """
import pytest
from utils import *

KEY = {"Authorization": "Bearer secret"}


def complete(server, **more):
    data = {"prompt": "Once", "n_predict": 4, **more}
    return server.make_request("POST", "/completion", data, KEY)


@pytest.mark.parametrize("n_prompt", [1234])
def test_served(server, n_prompt):
    server.start()
    found = complete(server)
    assert found.headers["X-REQUEST-ID"]
    assert match_regex("words of their model", found.body["content"])
    assert found.body["timings"]["prompt_n"] == n_prompt
    assert found.body["generation_settings"]["seed"] == 42
    assert found.body["generation_settings"]["n_ctx"] == 256
    assert found.body["tokens_predicted"] == 5


def test_counts():
    n_predicted = 99
    assert 4 == n_predicted


def test_with_grammar():
    assert match_regex("xx", "what a grammar gives with every model")


def test_adapters(server):
    server.lora_files = ["x"]
    server.start()


def test_download():
    download_file("http://localhost/file.gguf")


@pytest.mark.skip(reason="not ready")
def test_skipped():
    pass


@pytest.mark.slow
def test_slow():
    pass
"""


def test_outcomes_are_distinguished(tmp_path: Path):
    pytest.importorskip("requests")
    tests = tmp_path / "llama.cpp" / "tools" / "server" / "tests"
    (tests / "unit").mkdir(parents=True)
    (tests / "utils.py").write_text(UTILS)
    (tests / "conftest.py").write_text(CONFTEST)
    (tests / "unit" / "test_completion.py").write_text(TESTS)
    (tests / "unit" / "test_other.py").write_text("def test_fails():\n    assert False\n")
    (tests / "pytest.ini").write_text("[pytest]\nmarkers = slow: slow\n")
    command = [sys.executable, str(SCRIPT), "--files", "completion", str(tmp_path)]
    found = subprocess.run(
        [*command, "--json", str(tmp_path / "found.json")],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert found.returncode == 1, found.stdout + found.stderr
    results = json.loads((tmp_path / "found.json").read_text())
    file = "unit/test_completion.py"
    assert {name.removeprefix(f"{file}::"): outcome for name, (outcome, _) in results.items()} == {
        "test_served[1234]": "failed",
        "test_counts": "other model",
        "test_with_grammar": "failed",
        "test_adapters": "not offered",
        "test_download": "not offered",
        "test_skipped": "skipped",
    }
    # All earlier assertions hold. Results that depend on the model are not compared.
    assert '["tokens_predicted"] == 5' in results[f"{file}::test_served[1234]"][1]
    assert results[f"{file}::test_adapters"][1] == "an adapter of another model"
    row = next(line for line in found.stdout.splitlines() if line.startswith("test_completion.py"))
    assert row.split()[1:] == ["0", "2", "1", "2", "1"]


def test_a_folder_without_the_tests_is_refused(tmp_path: Path):
    found = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True)
    assert found.returncode == 1
    assert b"no tools/server/tests/utils.py" in found.stderr
