"""The GGUF reader: equality with gguf-py, typed access, arrays, split models and speed."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest

from zinc.core.errors import FormatError, ModelError
from zinc.formats.gguf import GGUFArray, GGUFFile, ValueType
from zinc.formats.gguf_writer import GGUFWriter
from zinc.quant.blocks import GGMLType

ROOT = Path(__file__).parents[2]
FILES = [*sorted((ROOT / "tests/data/fixtures").glob("*.gguf")), *(ROOT / "src").rglob("*.gguf")]


def test_files_for_the_comparison_exist():
    assert len(FILES) >= 4


@pytest.mark.alike(20)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_equals_gguf_py(path):
    theirs = gguf.GGUFReader(path)
    with GGUFFile.open(path) as ours:
        assert ours.n_bytes == path.stat().st_size
        assert ours.alignment == theirs.alignment
        keys = [key for key in theirs.fields if not key.startswith("GGUF.")]
        assert list(ours.metadata) == keys
        assert ours.version == theirs.fields["GGUF.version"].contents()
        for key in keys:
            value = ours.metadata[key]
            expected = theirs.fields[key].contents()
            if isinstance(value, GGUFArray):
                value = value.to_list()
            assert value == expected
            assert type(value) is type(expected)
            assert ours.value_types[key].value == theirs.fields[key].types[0].value
        assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
        for expected in theirs.tensors:
            tensor = ours.tensors[expected.name]
            assert tensor.shape == tuple(int(n) for n in expected.shape)[::-1]
            assert tensor.type.value == expected.tensor_type.value
            assert tensor.offset == expected.data_offset
            assert tensor.n_bytes == expected.n_bytes
            assert tensor.n_elements == expected.n_elements
            assert tensor.read().tobytes() == np.ascontiguousarray(expected.data).tobytes()


def test_tensor_decodes_to_its_shape():
    path = FILES[-1]
    with GGUFFile.open(path) as file:
        for reference in gguf.GGUFReader(path).tensors[:4]:
            expected = gguf.quants.dequantize(reference.data, reference.tensor_type)
            tensor = file.tensors[reference.name]
            assert np.array_equal(tensor.to_float32(), expected.reshape(tensor.shape))


def test_a_tensor_outlives_its_file():
    file = GGUFFile.open(FILES[0])
    tensor = next(iter(file.tensors.values()))
    before = tensor.read()
    file.close()
    assert not file.tensors
    assert np.array_equal(tensor.read(), before)


def test_part_of_a_tensor_can_be_read():
    with GGUFFile.open(FILES[0]) as file:
        tensor = next(iter(file.tensors.values()))
        part = np.empty(20, np.uint8)
        tensor.read_into(part, 10)
        assert np.array_equal(part, tensor.read()[10:30])
        for start in (-1, tensor.n_bytes - 19):
            with pytest.raises(ValueError, match="bytes"):
                tensor.read_into(part, start)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_a_file_is_closed_with_its_last_tensor(tmp_path):
    before = open_descriptors()
    file = GGUFFile.open(FILES[0])
    tensor = next(iter(file.tensors.values()))
    file.close()
    assert open_descriptors() == before + 1
    del tensor
    assert open_descriptors() == before
    with pytest.raises(FormatError):
        GGUFFile.open(tmp_path)
    assert open_descriptors() == before


def test_a_tensor_reads_the_file_that_was_opened(small, tmp_path):
    """A new file of the same name does not change an open model."""
    path = tmp_path / "model.gguf"
    for number in (1.0, 2.0):
        with GGUFWriter(path) as writer:
            writer.add_tensor("t", np.full(4, number, np.float32), GGMLType.F32, (4,))
        if number == 1.0:
            file = GGUFFile.open(path)
    assert file.tensors["t"].to_float32().tolist() == [1.0] * 4


def test_a_file_that_became_shorter_is_an_error(tmp_path):
    path = tmp_path / "model.gguf"
    with GGUFWriter(path) as writer:
        writer.add("words", ["a", "b"])
        for name in ("t", "u"):
            values = np.arange(4096, dtype=np.float32)
            writer.add_tensor(name, values, GGMLType.F32, values.shape)
    file = GGUFFile.open(path)
    os.truncate(path, file.tensors["u"].offset + 5000)
    assert file.tensors["t"].to_float32()[4095] == 4095
    with pytest.raises(FormatError, match=r"became shorter while it was read.*tensor u"):
        file.tensors["u"].read()
    os.truncate(path, 0)
    with pytest.raises(FormatError, match="tensor t reaches past byte"):
        file.tensors["t"].to_float32()
    assert file.array("words").to_list() == ["a", "b"]


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.gguf"
    with GGUFWriter(path) as writer:
        writer.add("general.architecture", "llama")
        writer.add("count", 7)
        writer.add("epsilon", 1e-6)
        writer.add("flag", True)
        writer.add("words", ["a", "", "déjà vu", "日本"])
        writer.add("numbers", np.array([3, -1, 2], np.int32))
        writer.add("flags", [True, False, True])
        writer.add("nothing", np.array([], np.float32))
        writer.add("raw", [b"\xff\xfe", b"ok"])
        writer.add("nested", [[1, 2], ["x"], []], ValueType.ARRAY)
    with GGUFFile.open(path) as file:
        yield file


def test_typed_access(small):
    assert small.str("general.architecture") == "llama"
    assert small.int("count") == 7
    assert small.float("epsilon") == pytest.approx(1e-6, rel=1e-6)
    assert small.float("count") == 7.0
    assert small.bool("flag") is True
    assert small.array("numbers").to_list() == [3, -1, 2]


def test_defaults(small):
    assert small.str("no.key", "x") == "x"
    assert small.int("no.key", default=3) == 3
    assert small.float("no.key", default=0.5) == 0.5
    assert small.bool("no.key", default=False) is False
    assert small.array("no.key", None) is None
    assert small.int("count", default=3) == 7


@pytest.mark.parametrize("accessor", ["str", "int", "float", "bool", "array"])
def test_a_missing_key_names_key_and_file(small, accessor):
    with pytest.raises(ModelError, match=r"small\.gguf has no metadata key no\.key"):
        getattr(small, accessor)("no.key")


@pytest.mark.parametrize(
    ("accessor", "key"),
    [
        ("str", "count"),
        ("int", "flag"),
        ("int", "epsilon"),
        ("int", "words"),
        ("float", "flag"),
        ("float", "general.architecture"),
        ("bool", "count"),
        ("array", "count"),
    ],
)
def test_another_type_is_refused_even_with_a_default(small, accessor, key):
    with pytest.raises(ModelError, match=rf"metadata key {key} of .*small\.gguf is not an? "):
        getattr(small, accessor)(key, default=None)


def test_arrays_are_sequences(small):
    words = small.array("words")
    assert len(words) == 4
    assert words.element_type is ValueType.STRING
    assert list(words) == words.to_list() == ["a", "", "déjà vu", "日本"]
    assert words[2] == words[-2] == "déjà vu"
    assert words[1:] == ["", "déjà vu", "日本"]
    assert "日本" in words
    assert words.index("") == 1
    with pytest.raises(IndexError):
        words[4]
    with pytest.raises(TypeError):
        words.to_numpy()
    assert small.array("flags").to_list() == [True, False, True]
    assert small.array("flags")[1] is False
    assert small.array("nothing").to_numpy().shape == (0,)
    assert small.array("nothing").to_list() == []


def test_numbers_are_views(small):
    numbers = small.array("numbers")
    assert numbers.to_numpy().dtype == np.int32
    assert not numbers.to_numpy().flags.writeable
    assert numbers[1] == -1
    assert isinstance(numbers[1], int)
    with pytest.raises(TypeError):
        numbers.bytes_at(0)
    with pytest.raises(TypeError):
        list(numbers.iter_bytes())


def test_invalid_utf8_strings(small):
    raw = small.array("raw")
    assert list(raw.iter_bytes()) == [b"\xff\xfe", b"ok"]
    assert raw.bytes_at(0) == b"\xff\xfe"
    assert raw.bytes_at(-1) == b"ok"
    assert raw[0] == "\ufffd\ufffd"


def test_nested_arrays(small):
    nested = small.array("nested")
    assert [child.to_list() for child in nested] == [[1, 2], ["x"], []]
    assert nested[1].element_type is ValueType.STRING


def test_version_2_is_read(tmp_path):
    path = tmp_path / "v2.gguf"
    raw = bytearray(FILES[0].read_bytes())
    raw[4:8] = struct.pack("<I", 2)
    path.write_bytes(raw)
    with GGUFFile.open(path) as file, GGUFFile.open(FILES[0]) as original:
        assert file.version == 2
        assert list(file.tensors) == list(original.tensors)


def test_a_large_vocabulary_is_opened_without_decoding_it(tmp_path):
    path = tmp_path / "vocabulary.gguf"
    with GGUFWriter(path) as writer:
        writer.add("tokenizer.ggml.tokens", [f"token{i}" for i in range(50_000)])
        writer.add("tokenizer.ggml.merges", [f"to ken{i}" for i in range(50_000)])
        writer.add("tokenizer.ggml.token_type", np.ones(50_000, np.int32))
    tracemalloc.start()
    with GGUFFile.open(path) as file:
        taken_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert taken_bytes < 2.5 * path.stat().st_size  # strings alone take three times that
        tokens = file.array("tokenizer.ggml.tokens")
        assert tokens[49_999] == "token49999"
        assert file.array("tokenizer.ggml.merges").to_list()[-1] == "to ken49999"


# Split models


def write_part(folder: Path, number: int, count: int, prefix: str = "", **changes: int) -> Path:
    """Write part `number` of `count` with two tensors; `changes` replace its split keys."""
    path = folder / f"model-{number:05}-of-{count:05}.gguf"
    values = {"no": number - 1, "count": count, "tensors_count": 2 * count, **changes}
    with GGUFWriter(path) as writer:
        if number == 1:
            writer.add("general.architecture", "llama")
        for key, value in values.items():
            writer.add(f"split.{key.replace('_', '.')}", value, ValueType.INT32)
        for i in range(2):
            data = np.full((2, 3), number * 10 + i, np.float32)
            name = f"{prefix or number}.{i}"
            writer.add_tensor(name, data, GGMLType.F32, data.shape)
    return path


@pytest.mark.parametrize("opened", [1, 2, 3])
def test_split_models_open_from_any_part(tmp_path, opened):
    paths = [write_part(tmp_path, number, 3) for number in (1, 2, 3)]
    with GGUFFile.open(paths[opened - 1]) as file:
        assert file.path == paths[0]
        assert file.paths == tuple(paths)
        assert file.str("general.architecture") == "llama"
        assert file.n_bytes == sum(path.stat().st_size for path in paths)
        assert len(file.tensors) == 6
        tensor = file.tensors["3.1"]
        assert tensor.path == paths[2]
        assert np.array_equal(tensor.to_float32(), np.full((2, 3), 31))


def test_a_missing_part_is_named(tmp_path):
    paths = [write_part(tmp_path, number, 3) for number in (1, 2, 3)]
    paths[1].unlink()
    with pytest.raises(FormatError, match="part 2 of 3 of the model is missing"):
        GGUFFile.open(paths[2])


def test_a_renamed_part_is_refused(tmp_path):
    renamed = write_part(tmp_path, 1, 3).rename(tmp_path / "model.gguf")
    with pytest.raises(FormatError, match="one of 3 parts"):
        GGUFFile.open(renamed)


def test_a_swapped_part_is_refused(tmp_path):
    first = write_part(tmp_path, 1, 2)
    write_part(tmp_path, 2, 2, no=0)
    with pytest.raises(FormatError, match=r"is not part 2 of 2.*split\.no 0"):
        GGUFFile.open(first)


def test_parts_of_different_models_are_refused(tmp_path):
    first = write_part(tmp_path, 1, 2, tensors_count=5)
    write_part(tmp_path, 2, 2)
    with pytest.raises(FormatError, match="4 tensors and should have 5"):
        GGUFFile.open(first)


def test_a_tensor_in_two_parts_is_refused(tmp_path):
    first = write_part(tmp_path, 1, 2, prefix="same")
    write_part(tmp_path, 2, 2, prefix="same")
    with pytest.raises(FormatError, match="occurs twice"):
        GGUFFile.open(first)
