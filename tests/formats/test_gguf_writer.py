"""The GGUF writer: files are read back by gguf-py and by zinc."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from zinc.core.errors import FormatError, ModelError
from zinc.formats.gguf import GGUFArray, GGUFFile, ValueType
from zinc.formats.gguf_writer import GGUFWriter
from zinc.quant.blocks import GGMLType
from zinc.quant.encode import encode

SCALARS = [
    ("u8", 200, ValueType.UINT8),
    ("i8", -100, ValueType.INT8),
    ("u16", 60_000, ValueType.UINT16),
    ("i16", -30_000, ValueType.INT16),
    ("u32", 4_000_000_000, ValueType.UINT32),
    ("i32", -2_000_000_000, ValueType.INT32),
    ("u64", 1 << 63, ValueType.UINT64),
    ("i64", -(1 << 62), ValueType.INT64),
    ("f32", 0.5, ValueType.FLOAT32),
    ("f64", 0.1, ValueType.FLOAT64),
    ("yes", True, ValueType.BOOL),
    ("text", "naïve ☃", ValueType.STRING),
]

ARRAYS = [
    ("numbers", [1, 2, 3], ValueType.UINT32),
    ("bytes", [0, 255], ValueType.UINT8),
    ("signed", [-1, 1], ValueType.INT64),
    ("floats", [0.25, -4.0], ValueType.FLOAT64),
    ("flags", [True, False], ValueType.BOOL),
    ("words", ["a", "bc", "", "é"], ValueType.STRING),
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.gguf"


def tensors() -> dict[str, tuple[np.ndarray, GGMLType]]:
    rng = np.random.default_rng(0)
    shapes = [((256,), GGMLType.F32), ((3, 256), GGMLType.Q4_K), ((2, 3, 64), GGMLType.Q8_0)]
    shapes += [((5, 7), GGMLType.F16), ((2, 1, 3, 32), GGMLType.Q5_1), ((1, 512), GGMLType.Q6_K)]
    return {
        f"t{i}": (rng.standard_normal(shape).astype(np.float32), type)
        for i, (shape, type) in enumerate(shapes)
    }


@pytest.mark.parametrize("alignment", [32, 64, 4096])
def test_round_trip_through_gguf_py_and_zinc(path, alignment):
    with GGUFWriter(path, alignment) as writer:
        writer.add("general.architecture", "llama")
        for key, value, kind in SCALARS + ARRAYS:
            writer.add(key, value, kind)
        for name, (values, type) in tensors().items():
            writer.add_tensor(name, encode(values, type), type, values.shape)

    theirs = gguf.GGUFReader(path)
    assert theirs.alignment == alignment
    for key, value, kind in SCALARS:
        assert theirs.fields[key].contents() == value
        assert theirs.fields[key].types == [gguf.GGUFValueType(kind.value)]
    for key, value, kind in ARRAYS:
        assert theirs.fields[key].contents() == value
        assert theirs.fields[key].types[1] == gguf.GGUFValueType(kind.value)
    assert [tensor.name for tensor in theirs.tensors] == list(tensors())
    for tensor in theirs.tensors:
        values, type = tensors()[tensor.name]
        assert tuple(tensor.shape)[::-1] == values.shape
        assert tensor.data_offset % alignment == 0
        assert np.ascontiguousarray(tensor.data).tobytes() == encode(values, type).tobytes()

    with GGUFFile.open(path) as ours:
        assert ours.alignment == alignment
        for key, value, kind in SCALARS:
            assert ours.metadata[key] == value
            assert ours.value_types[key] is kind
        for key, value, kind in ARRAYS:
            assert ours.array(key).to_list() == value
            assert ours.array(key).element_type is kind
        for name, (values, type) in tensors().items():
            tensor = ours.tensors[name]
            assert (tensor.shape, tensor.type) == (values.shape, type)
            assert tensor.read().tobytes() == encode(values, type).tobytes()


def test_zinc_reads_a_file_of_gguf_py(path):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_array("words", ["x", "yz"])
    writer.add_custom_alignment(128)
    writer.add_tensor("a", np.arange(6, dtype=np.float32).reshape(2, 3))
    quantised = gguf.quants.quantize(np.ones((2, 64), np.float32), gguf.GGMLQuantizationType.Q4_0)
    writer.add_tensor("b", quantised, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile.open(path) as file:
        assert file.alignment == 128
        assert file.int("llama.block_count") == 2
        assert file.array("words").to_list() == ["x", "yz"]
        assert file.tensors["a"].to_float32().tolist() == [[0, 1, 2], [3, 4, 5]]
        assert file.tensors["b"].shape == (2, 64)
        assert np.array_equal(file.tensors["b"].to_float32(), np.ones((2, 64)))


def test_a_copy_of_a_file_is_equal(path, tmp_path):
    with GGUFWriter(path, 64) as writer:
        for key, value, kind in SCALARS + ARRAYS:
            writer.add(key, value, kind)
        writer.add("tokens", [b"\xff", b"\x00a"])
        writer.add("nested", [[1, 2], [3]])
        for name, (values, type) in tensors().items():
            writer.add_tensor(name, encode(values, type), type, values.shape)
    copy = tmp_path / "copy.gguf"
    with GGUFFile.open(path) as file, GGUFWriter(copy, file.alignment) as writer:
        for key, value in file.metadata.items():
            kind = None if isinstance(value, GGUFArray) else file.value_types[key]
            writer.add(key, value, kind)
        for tensor in file.tensors.values():
            writer.add_tensor(tensor.name, tensor.read(), tensor.type, tensor.shape)
    assert copy.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (0, ValueType.UINT32),
        (-1, ValueType.INT32),
        (1 << 32, ValueType.UINT64),
        (-(1 << 40), ValueType.INT64),
        (1.0, ValueType.FLOAT32),
        (False, ValueType.BOOL),
        ("", ValueType.STRING),
        (b"\xff", ValueType.STRING),
        (np.float64(0.1), ValueType.FLOAT64),
        (np.uint8(3), ValueType.UINT8),
    ],
)
def test_types_of_scalars_are_inferred(path, value, kind):
    with GGUFWriter(path) as writer:
        writer.add("key", value)
    with GGUFFile.open(path) as file:
        assert file.value_types["key"] is kind


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([1, -1], ValueType.INT32),
        ([1, 0.5], ValueType.FLOAT32),
        (np.arange(3, dtype=">i2"), ValueType.INT16),
        (np.array([True]), ValueType.BOOL),
        (("a", b"b"), ValueType.STRING),
        ([], ValueType.STRING),
        ([[1], ["a"]], ValueType.ARRAY),
    ],
)
def test_types_of_elements_are_inferred(path, value, kind):
    with GGUFWriter(path) as writer:
        writer.add("key", value)
    with GGUFFile.open(path) as file:
        array = file.array("key")
        assert array.element_type is kind
        assert len(array) == len(value)
        if isinstance(value, np.ndarray):
            assert array.to_list() == value.tolist()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, None),
        (1 << 64, None),
        (object(), None),
        ([1, "a"], None),
        ([None], None),
        (300, ValueType.UINT8),
        (-1, ValueType.UINT64),
        (0.5, ValueType.INT32),
        ("a", ValueType.INT32),
        (1, ValueType.STRING),
        (1, ValueType.BOOL),
        (np.zeros((2, 2)), None),
        (np.zeros(2, np.complex64), None),
        (1e300, ValueType.FLOAT32),
    ],
)
def test_values_without_a_type_are_refused(path, value, kind):
    with pytest.raises(ModelError, match="metadata key key cannot be written"):
        GGUFWriter(path).add("key", value, kind)


def test_refused_keys_and_alignments(path):
    writer = GGUFWriter(path)
    writer.add("key", 1)
    with pytest.raises(ModelError, match="already there"):
        writer.add("key", 2)
    with pytest.raises(ModelError, match="empty or too long"):
        writer.add("", 2)
    with pytest.raises(ModelError, match=r"general\.alignment"):
        writer.add("general.alignment", 64)
    with pytest.raises(ModelError, match="power of two"):
        GGUFWriter(path, 48)


def test_refused_tensors(path):
    writer = GGUFWriter(path)
    data = np.zeros((2, 32), np.float32)
    writer.add_tensor("a", data, GGMLType.F32, (2, 32))
    with pytest.raises(ModelError, match="already there"):
        writer.add_tensor("a", data, GGMLType.F32, (2, 32))
    with pytest.raises(ModelError, match="takes 68 bytes"):
        writer.add_tensor("b", data, GGMLType.Q8_0, (2, 32))
    with pytest.raises(ModelError, match="blocks hold 256"):
        writer.add_tensor("b", data, GGMLType.Q4_K, (2, 32))
    with pytest.raises(ModelError, match="5 dimensions"):
        writer.add_tensor("b", data, GGMLType.F32, (1, 1, 1, 2, 32))
    with pytest.raises(ModelError, match="no elements"):
        writer.add_tensor("b", data[:0], GGMLType.F32, (0, 32))
    with pytest.raises(ModelError, match="empty or too long"):
        writer.add_tensor("", data, GGMLType.F32, (2, 32))


def test_no_file_is_written_if_the_block_raises(path):
    def fail_halfway() -> None:
        with GGUFWriter(path) as writer:
            writer.add("key", 1)
            raise KeyError

    with pytest.raises(KeyError):
        fail_halfway()
    assert not path.exists()


def test_a_system_error_becomes_a_format_error(tmp_path):
    with pytest.raises(FormatError, match="cannot write"):
        GGUFWriter(tmp_path / "no" / "folder" / "model.gguf").write()
    folder = tmp_path / "model.gguf"
    folder.mkdir()
    with pytest.raises(FormatError, match="cannot write"):
        GGUFWriter(folder).write()
    assert list(tmp_path.iterdir()) == [folder]
