"""Arrays of strings are found as a loop over their lengths finds them."""

from __future__ import annotations

import random
import struct

import pytest

from zinc.formats import strings

TEXTS = {
    "short": [b"a", b"bc", "Ġthe".encode(), b"x" * 127, b"y" * 128, b"z" * 255],
    "empty": [b"", b"a", b"", b""],
    "long": [b"x" * 256, b"a", b"y" * 70_000, b"z" * 511, b"b"],
    "zeros": [b"\0", b"a\0b", b"\0" * 9, b"c" + b"\0" * 7, b"d", b"\x05" + b"\0" * 8],
    "invalid": [b"\xff\xfe", b"\xe2\x82", b"\xac", b"ok"],
}


def array(texts: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(text)) + text for text in texts)


def mixed(seed: int, n_strings: int) -> list[bytes]:
    """Return strings of all kinds, mostly of one kind for some time."""
    rng = random.Random(seed)
    found: list[bytes] = []
    while len(found) < n_strings:
        kind = TEXTS[rng.choice(["short", "short", "short", *TEXTS])]
        found += rng.choices(kind, k=rng.choice([1, 2, 20, 500]))
    return found[:n_strings]


@pytest.mark.parametrize("window", [8, 64, 1 << 12, 1 << 18])
@pytest.mark.parametrize("seed", range(6))
def test_positions_and_texts_are_those_of_a_loop(
    monkeypatch: pytest.MonkeyPatch, window: int, seed: int
) -> None:
    monkeypatch.setattr(strings, "_WINDOW", window)
    texts = mixed(seed, 300 if window < 100 else 3000)
    data = b"before" + array(texts) + b"\x07" + bytes(100)
    positions, end = strings.find_strings(data, 6, len(texts))
    expected, at = [], 6
    for text in texts:
        expected.append(at)
        at += 8 + len(text)
    assert positions.tolist() == expected
    assert end == at
    decoded = [text.decode("utf-8", "replace") for text in texts]
    assert strings.decode_strings(data, 6, len(texts)) == decoded


@pytest.mark.parametrize("kind", TEXTS)
def test_each_kind_alone(kind: str) -> None:
    texts = TEXTS[kind]
    decoded = [text.decode("utf-8", "replace") for text in texts]
    assert strings.decode_strings(array(texts), 0, len(texts)) == decoded
    assert strings.decode_strings(b"", 0, 0) == []


def test_a_part_of_the_array_ends_where_a_length_is_missing() -> None:
    data = array([b"abc", b"de"])
    positions, end = strings.find_strings(data + b"\x01\0\0", 0, 5)
    assert (positions.tolist(), end) == ([0, 11], 21)
    positions, end = strings.find_strings(data[:-1], 0, 5)
    assert (positions.tolist(), end) == ([0, 11], 21)
    positions, end = strings.find_strings(struct.pack("<Q", 1 << 63), 0, 2)
    assert (positions.tolist(), end) == ([0], 8 + (1 << 63))


def test_texts_that_look_like_lengths_are_passed_in_large_steps() -> None:
    texts = [b"\x01" + b"\0" * 7] * 10_000
    runs, _ = strings._find_in_window(array(texts), 0, len(texts))
    assert sum(map(len, runs)) == len(texts)
    assert len(runs) < 100
