"""The key of the prefix cache on disk: every byte of a file counts, and is hashed once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from effort import EVERY

from zinc import LLM
from zinc.core.errors import FormatError
from zinc.engine import identity
from zinc.engine.identity import HashingReader, TensorDigests
from zinc.formats.gguf import GGUFFile
from zinc.formats.gguf_writer import GGUFWriter
from zinc.quant.blocks import GGMLType

FIXTURES = Path(__file__).parents[1] / "data/fixtures"
TICK_S = 0.03  # longer than a tick of the file system's clock


@pytest.fixture
def path(tmp_path) -> Path:
    """A file that was last changed long ago."""
    path = tmp_path / "model.gguf"
    with GGUFWriter(path) as writer:
        writer.add("general.architecture", "llama")
        for i, size in enumerate((300_000, 5, 70_000)):
            values = np.random.default_rng(i).standard_normal(size).astype(np.float32)
            writer.add_tensor(f"t{i}", values, GGMLType.F32, (size,))
    return path


@pytest.fixture(autouse=True)
def _settled(monkeypatch):
    monkeypatch.setattr(identity, "SETTLED_NS", 0)


def key(path: Path, folder: Path) -> str:
    with GGUFFile.open(path) as file:
        return TensorDigests(file, folder).finish()


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_every_byte_of_header_and_tensors_changes_the_key(path, tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "SETTLED_NS", 3600 * 10**9)  # edits follow at once
    keys = {key(path, tmp_path)}
    with GGUFFile.open(path) as file:
        tensors = list(file.tensors.values())
        header = file.parts[0].header.data.index(b"llama")
    places = [header]
    for tensor in tensors:
        places += [tensor.offset + at for at in (0, tensor.n_bytes // 2, tensor.n_bytes - 1)]
    for at in places:
        flip(path, at)
        keys.add(key(path, tmp_path))
        flip(path, at)
    assert len(keys) == 1 + len(places)
    assert key(path, tmp_path) in keys


def test_an_edit_with_restored_times_changes_the_key(path, tmp_path):
    """Size, inode and modification time stay the same."""
    before, times = key(path, tmp_path), path.stat()
    time.sleep(TICK_S)
    flip(path, path.stat().st_size // 2)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_mtime_ns == times.st_mtime_ns
    assert key(path, tmp_path) != before


def test_an_unchanged_file_is_hashed_once(path, tmp_path, monkeypatch):
    before = key(path, tmp_path)
    (record,) = tmp_path.glob("weights-*.json")
    assert record.stat().st_mode & 0o077 == 0

    def read(*_):
        raise AssertionError("a tensor is read")

    monkeypatch.setattr(HashingReader, "read_into", read)
    assert key(path, tmp_path) == before
    with GGUFFile.open(path) as file:
        tensor = file.tensors["t0"]
        assert TensorDigests(file, tmp_path).reader(tensor) is tensor


def test_a_file_that_changed_just_now_is_hashed_again(path, tmp_path, monkeypatch):
    """Its times could not reveal one more change."""
    monkeypatch.setattr(identity, "SETTLED_NS", 3600 * 10**9)
    before = key(path, tmp_path)
    assert not list(tmp_path.glob("weights-*.json"))
    assert key(path, tmp_path) == before


def test_hashes_do_not_depend_on_the_order_of_reading(path, tmp_path):
    with GGUFFile.open(path) as file:
        digests = TensorDigests(file, tmp_path)
        tensor = file.tensors["t0"]
        reader = digests.reader(tensor)
        data = tensor.read()
        for start, end in ((0, 1000), (500, 1500), (5000, 6000), (1500, 5000), (0, 7000)):
            part = np.empty(end - start, np.uint8)
            reader.read_into(part, start)
            assert np.array_equal(part, data[start:end])
        digests.finish()
    (record,) = tmp_path.glob("weights-*.json")
    assert json.loads(record.read_bytes())["sha256"]["t0"] == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"stamp": 1}', '{"stamp": [1, 2], "sha256": 3}'])
def test_a_damaged_record_is_replaced(path, tmp_path, text):
    before = key(path, tmp_path)
    (record,) = tmp_path.glob("weights-*.json")
    whole = record.read_bytes()
    record.write_text(text)
    assert key(path, tmp_path) == before
    assert record.read_bytes() == whole


def test_a_record_without_a_tensor_is_not_used(path, tmp_path):
    before = key(path, tmp_path)
    (record,) = tmp_path.glob("weights-*.json")
    fields = json.loads(record.read_bytes())
    del fields["sha256"]["t1"]
    record.write_text(json.dumps(fields))
    assert key(path, tmp_path) == before


def test_a_copy_has_the_same_key(path, tmp_path):
    shutil.copy(path, tmp_path / "copy.gguf")
    assert key(path, tmp_path) == key(tmp_path / "copy.gguf", tmp_path)


def test_a_file_that_changes_while_it_is_loaded_is_an_error(path, tmp_path):
    with GGUFFile.open(path) as file:
        digests = TensorDigests(file, tmp_path)
        time.sleep(TICK_S)
        flip(path, path.stat().st_size - 1)
        with pytest.raises(FormatError, match="changed while it was loaded"):
            digests.finish()


@pytest.mark.parametrize("family", ["llama", "deepseek2", "phi3", "gemma4moe"])
def test_an_edited_tensor_does_not_find_the_cache_of_the_model(family, tmp_path):
    """Change one byte of each tensor in turn; the file's times stay the same."""
    model, cache = tmp_path / "model.gguf", tmp_path / "cache"
    shutil.copy(FIXTURES / f"{family}.gguf", model)
    times = model.stat()

    def folder() -> str:
        with LLM(model, context=64, threads=1, cache_dir=cache):
            pass
        with LLM(model, context=64, threads=1, cache_dir=cache) as llm:
            assert llm.engine.disk is not None
            return llm.engine.disk.store.key

    with GGUFFile.open(model) as file:
        tensors = list(file.tensors.values())
    whole = folder()
    keys, n = {whole}, 4 if EVERY else 2
    chosen = np.random.default_rng(0).choice(len(tensors), n, replace=False)
    for tensor in (tensors[i] for i in chosen):
        at = tensor.offset + tensor.n_bytes // 3
        flip(model, at)
        os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))
        keys.add(folder())
        flip(model, at)
    assert len(keys) == 1 + n
    assert folder() == whole
