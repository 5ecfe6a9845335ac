"""Damaged and hostile files: a clear error for each defect, and only ZincError under fuzzing."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zinc.core.errors import FormatError, UnsupportedError, ZincError
from zinc.formats import cursor
from zinc.formats.gguf import GGUFArray, GGUFFile, ValueType
from zinc.formats.gguf_writer import GGUFWriter
from zinc.quant.blocks import GGMLType
from zinc.quant.encode import encode

U64_MAX = (1 << 64) - 1


def string(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def value(key: str, kind: int, payload: bytes) -> bytes:
    return string(key.encode()) + struct.pack("<I", kind) + payload


def entry(
    name: bytes = b"t", dims: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0
) -> bytes:
    head = string(name) + struct.pack("<I", len(dims))
    return head + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset)


def build(
    values: list[bytes] | None = None,
    entries: list[bytes] | None = None,
    n_data_bytes: int = 0,
    *,
    version: int = 3,
    n_values: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    values, entries = values or [], entries or []
    n_values = len(values) if n_values is None else n_values
    n_tensors = len(entries) if n_tensors is None else n_tensors
    raw = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_values)
    raw += b"".join(values) + b"".join(entries)
    return raw + bytes(-len(raw) % alignment) + bytes(n_data_bytes)


def array(kind: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + payload


STRING, ARRAY, U32, BOOL = 8, 9, 4, 7


def alignment_of(n: int) -> bytes:
    return value("general.alignment", U32, struct.pack("<I", n))


CORRUPT = {
    "empty": (b"", "it is empty"),
    "short": (b"GGUF", "the header needs 4 more"),
    "magic": (b"NOPE" + bytes(100), r"first bytes are 4e 4f 50 45 and not 47 47 55 46 \(GGUF\)"),
    "zip": (b"PK\x03\x04" + bytes(100), "zip archive"),
    "html": (b"<!DOCTYPE html>" + bytes(100), "HTML"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n" + bytes(50), "Git LFS pointer"),
    "safetensors": (struct.pack("<Q", 10) + b'{"a": 1}' + bytes(9), "safetensors"),
    "pickle": (b"\x80\x02}q\x00." + bytes(100), "a Python pickle, perhaps a PyTorch checkpoint"),
    "gzip": (b"\x1f\x8b\x08" + bytes(100), "it is compressed"),
    "zeros": (bytes(100), "begins with zeros, perhaps because its download did not end"),
    "text": ("Entrée é\n".encode() + b"x" * 52 + "éé".encode(), "text file that begins with 'Ent"),
    "json": (b'\n{"error": "Not Found"}', """begins with '{"error": "Not Found"}'"""),
    "keys count": (build(n_values=1 << 40), "claims 1099511627776 metadata keys"),
    "tensors count": (build(n_tensors=U64_MAX), "claims 18446744073709551615 tensors"),
    "key length": (build([struct.pack("<Q", U64_MAX) + bytes(20)]), "name of a metadata key"),
    "key beyond end": (build([struct.pack("<Q", 60_000) + bytes(20)]), "truncated"),
    "key empty": (build([value("", U32, bytes(4)) + bytes(9)]), "has 0 bytes"),
    "key not utf-8": (build([string(b"\xff\xfe") + bytes(20)]), "not printable UTF-8"),
    "key with escape": (build([string(b"\x1b[2J") + bytes(20)]), "not printable UTF-8"),
    "key twice": (build([value("a", U32, bytes(4))] * 2), "metadata key a occurs twice"),
    "value type": (build([value("a", 99, bytes(8))]), "a has the unknown type 99"),
    "value cut": (build([value("a", 10, bytes(1))], alignment=1), "truncated"),
    "string length": (build([value("a", STRING, struct.pack("<Q", U64_MAX))]), "the value of a"),
    "bool": (build([value("a", BOOL, b"\x02")]), "boolean with the value 2"),
    "bool array": (build([value("a", ARRAY, array(BOOL, 2, b"\x00\x07"))]), "with the value 7"),
    "array type": (build([value("a", ARRAY, array(77, 1))]), "unknown type 77"),
    "array count": (build([value("a", ARRAY, array(U32, 1 << 62))]), "the array a needs"),
    "strings count": (build([value("a", ARRAY, array(STRING, U64_MAX))]), "the array a needs"),
    "strings length": (
        build([value("a", ARRAY, array(STRING, 2, struct.pack("<Q", 1 << 63) + bytes(8)))]),
        "the array a needs",
    ),
    "strings wrap around": (
        build([value("a", ARRAY, array(STRING, 2, struct.pack("<Q", U64_MAX - 7) + bytes(8)))]),
        "the array a needs",
    ),
    "last string cut": (
        build([value("a", ARRAY, array(STRING, 1, struct.pack("<Q", 100)))]),
        "the array a needs",
    ),
    "alignment 0": (build([alignment_of(0)]), "general.alignment is 0, and it must be a power"),
    "alignment 24": (build([alignment_of(24)]), "general.alignment is 24, and it must be a power"),
    "alignment too large": (build([alignment_of(1 << 17)]), "a power of two of at most 65536"),
    "alignment type": (build([value("general.alignment", STRING, string(b"x"))]), "'x'"),
    "alignment of 64 bits": (
        build([value("general.alignment", 10, struct.pack("<Q", 32))]),
        "general.alignment is 32 of type UINT64",
    ),
    "alignment twice": (
        build([alignment_of(32), alignment_of(64)]),
        "metadata key general.alignment occurs twice",
    ),
    "alignment smaller than that of the tensors": (
        build([alignment_of(16)], [entry(dims=(5,)), entry(b"u", (5,), offset=64)], 128),
        "tensor u is at offset 64, and the tensors before it and the alignment of 16 put it at 32",
    ),
    "alignment larger than that of the tensors": (
        build([alignment_of(64)], [entry(dims=(5,)), entry(b"u", (5,), offset=32)], 128),
        "tensor u is at offset 32, .* put it at 64",
    ),
    "tensor table cut": (build(entries=[entry()[:-8]], alignment=1), "claims 1 tensors|truncated"),
    "dims": (build(entries=[entry(dims=(1, 1, 1, 1, 1))]), "t has 5 dimensions"),
    "dims count": (build(entries=[string(b"t") + b"\xff" * 40]), "4294967295 dimensions"),
    "dims of 0": (build(entries=[entry(dims=(32, 0))]), "t has no elements"),
    "dims overflow": (
        build(entries=[entry(dims=(1 << 32, 1 << 32, 1 << 32, 1 << 32))], n_data_bytes=128),
        "truncated or corrupt.*tensor t",
    ),
    "dims wrap to 0": (
        build(entries=[entry(dims=(1 << 62, 4))], n_data_bytes=128),
        "tensor t, the last in it, needs 73786976294838206336 more",
    ),
    "data missing": (
        build(entries=[entry(dims=(32, 2))], n_data_bytes=200),
        "tensor t, the last in it, needs 56 more",
    ),
    "offset beyond end": (
        build(entries=[entry(offset=1 << 40)], n_data_bytes=128),
        "tensor t is at offset 1099511627776",
    ),
    "offset misaligned": (build(entries=[entry(offset=8)], n_data_bytes=200), "is at offset 8"),
    "gap": (
        build(entries=[entry(b"a"), entry(b"b", offset=256)], n_data_bytes=512),
        "tensor b is at offset 256, .* put it at 128",
    ),
    "rows of part blocks": (
        build(entries=[entry(dims=(100,), kind=12)], n_data_bytes=200),
        "rows of 100 elements, and Q4_K stores blocks of 256",
    ),
    "overlap": (
        build(entries=[entry(b"a"), entry(b"b", offset=64)], n_data_bytes=256),
        "tensor b is at offset 64, .* put it at 128",
    ),
    "tensor twice": (
        build(entries=[entry(b"a"), entry(b"a", offset=128)], n_data_bytes=256),
        "tensor a occurs twice",
    ),
    "tensor name": (build(entries=[entry(b"\x80")], n_data_bytes=128), "name of a tensor"),
}

UNSUPPORTED = {
    "version 1": (build(version=1), "GGUF version 1"),
    "version 4": (build(version=4), "GGUF version 4"),
    "version 0": (build(version=0), "GGUF version 0"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(8), "big-endian"),
    "type 99": (build(entries=[entry(kind=99)], n_data_bytes=128), "tensor t has type 99.*unknown"),
    "type 4": (build(entries=[entry(kind=4)], n_data_bytes=128), "tensor t has type 4.*withdrawn"),
    "nesting": (
        build([value("a", ARRAY, array(ARRAY, 1) * 50 + array(U32, 0))]),
        "nests more than",
    ),
    "nested count": (build([value("a", ARRAY, array(ARRAY, 1 << 50))]), "nests more than"),
}


def write(folder: Path, raw: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize(("raw", "message"), CORRUPT.values(), ids=CORRUPT)
def test_corrupt(tmp_path, raw, message):
    with pytest.raises(FormatError, match=message) as caught:
        GGUFFile.open(write(tmp_path, raw))
    assert "model.gguf" in str(caught.value)


@pytest.mark.parametrize(("raw", "message"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_unsupported(tmp_path, raw, message):
    with pytest.raises(UnsupportedError, match=message) as caught:
        GGUFFile.open(write(tmp_path, raw))
    assert "model.gguf" in str(caught.value)


def test_the_builder_makes_valid_files(tmp_path):
    """The builder of the cases above makes valid files by default."""
    raw = build(
        [value("a", U32, bytes(4)), value("b", ARRAY, array(STRING, 1, string(b"x")))],
        [entry(b"s", ()), entry(b"t", (32, 2), offset=32)],
        32 + 256,
    )
    with GGUFFile.open(write(tmp_path, raw)) as file:
        assert file.int("a") == 0
        assert file.array("b")[0] == "x"
        assert file.tensors["s"].shape == (1,)
        assert file.tensors["t"].shape == (2, 32)


@pytest.mark.parametrize("kind", [0, STRING])
def test_the_size_of_a_header_is_limited(tmp_path, monkeypatch, kind):
    """A huge array in a sparse file reads no more than the limit."""
    monkeypatch.setattr(cursor, "MAX_HEADER_BYTES", 1 << 20)
    path = write(tmp_path, build([value("a", ARRAY, array(kind, 1 << 28))]))
    os.truncate(path, 1 << 33)
    tracemalloc.start()
    with pytest.raises(FormatError, match="the array a ends after byte 1048576 of the header"):
        GGUFFile.open(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 << 20


def test_not_a_file(tmp_path):
    with pytest.raises(FormatError, match="No such file"):
        GGUFFile.open(tmp_path / "missing.gguf")
    with pytest.raises(FormatError, match="cannot read"):
        GGUFFile.open(tmp_path)
    with pytest.raises(FormatError, match="cannot read"):
        GGUFFile.open("nul\0byte")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(FormatError, match="not a regular file"):
        GGUFFile.open(tmp_path / "pipe.gguf")


# Fuzzing


def touch(path: Path) -> None:
    """Open a file and decode everything in it."""
    with GGUFFile.open(path) as file:
        for item in file.metadata.values():
            if isinstance(item, GGUFArray):
                _walk(item)
        for tensor in file.tensors.values():
            assert tensor.to_float32().shape == tensor.shape


def _walk(items: GGUFArray) -> None:
    assert len(items.to_list()) == len(items)
    if len(items):
        assert items[len(items) - 1] is not None
    for item in items:
        if isinstance(item, GGUFArray):
            _walk(item)


def write_valid(path: Path) -> None:
    """Write a small file with every kind of value and a few block formats."""
    rng = np.random.default_rng(0)
    with GGUFWriter(path, 16) as writer:
        writer.add("general.architecture", "llama")
        writer.add("llama.block_count", 2)
        writer.add("flag", True)
        writer.add("eps", 1e-5, ValueType.FLOAT64)
        writer.add("words", ["a", "bc", "def", "日本"])
        writer.add("numbers", np.arange(5, dtype=np.int16))
        writer.add("flags", [True, False])
        writer.add("nested", [[1, 2], ["x"]])
        for i, type in enumerate((GGMLType.F32, GGMLType.Q4_0, GGMLType.Q6_K, GGMLType.BF16)):
            values = rng.standard_normal((2, 256)).astype(np.float32)
            writer.add_tensor(f"blk.{i}.weight", encode(values, type), type, values.shape)


@pytest.fixture(scope="module")
def valid(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("fuzz") / "valid.gguf"
    write_valid(path)
    touch(path)
    return path.read_bytes()


def survives(path: Path, raw: bytes) -> bool:
    """Return whether the file can be read; errors other than ZincError fail the test."""
    path.write_bytes(raw)
    try:
        touch(path)
    except ZincError:
        return False
    return True


def test_every_truncation_is_refused(valid, tmp_path):
    header = valid.index(b"blk.3.weight") + 60
    for size in [*range(header), *range(header, len(valid) - 16, 97)]:
        assert not survives(tmp_path / "cut.gguf", valid[:size])


def test_random_damage(valid, tmp_path):
    """Bytes are flipped, integers enlarged, parts cut or repeated, mostly in the header."""
    rng = random.Random(1234)
    header = valid.index(b"blk.3.weight") + 60
    big = [0xFFFFFFFF, 1 << 31, 1 << 32, 1 << 62, 1 << 63, U64_MAX, U64_MAX - 31]
    n_read = 0
    tracemalloc.start()
    n = examples(2000)
    for _ in range(n):
        raw = bytearray(valid)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            at = rng.randrange(header)
            match rng.randrange(5):
                case 0:
                    raw[at] ^= 1 << rng.randrange(8)
                case 1:
                    raw[at] = rng.randrange(256)
                case 2:
                    raw[at : at + 8] = struct.pack("<Q", rng.choice(big))
                case 3:
                    raw[at : at + 4] = struct.pack("<I", rng.choice(big) & 0xFFFFFFFF)
                case 4:
                    raw[at : at + rng.randrange(1, 9)] = b""
        n_read += survives(tmp_path / "damaged.gguf", bytes(raw))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert n / 20 < n_read < n * 19 / 20  # damage of names and values is no damage of structure
    assert peak < 16 << 20


@settings(
    max_examples=examples(400),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.binary(max_size=200), st.integers(0, 3), st.integers(0, 3))
def test_random_headers(tmp_path, body, n_tensors, n_values):
    raw = b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_values) + body
    survives(tmp_path / "random.gguf", raw)


keys = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20)
scalars = st.one_of(
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(width=32, allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)
arrays = st.one_of(
    st.lists(st.booleans(), min_size=1),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1)),
    st.lists(st.floats(width=32, allow_nan=False)),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]))),
)


@settings(
    max_examples=examples(150),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.dictionaries(keys, scalars | arrays, max_size=8))
def test_any_metadata_round_trips(tmp_path, metadata):
    path = tmp_path / "any.gguf"
    with GGUFWriter(path) as writer:
        for key, item in metadata.items():
            writer.add(key, item)
    with GGUFFile.open(path) as file:
        assert list(file.metadata) == list(metadata)
        for key, item in file.metadata.items():
            assert (item.to_list() if isinstance(item, GGUFArray) else item) == metadata[key]
