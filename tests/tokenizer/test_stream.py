"""Streaming gives the text of a bulk decoding, whatever the split, and ends at stop strings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_vocabularies import byte_level, scored

from zinc.core.errors import RequestError
from zinc.tokenizer import StopMatcher, StreamDecoder, Tokenizer
from zinc.tokenizer.vocabulary import TokenKind

BYTES = Tokenizer.from_metadata(byte_level(("<|im_end|>", TokenKind.CONTROL)))
BYTE_ID = {BYTES.token_bytes(id): id for id in range(256)}
WORDS = Tokenizer.from_metadata(
    scored({"▁": -1.0, "a": -1.0, "é": -1.0, "▁a": -2.0, "b▁": -1.0, "😀": -3.0})
)


def ids_of(data):
    return [BYTE_ID[bytes([byte])] for byte in data]


def stream(tokenizer, ids, **options):
    decoder = StreamDecoder(tokenizer, **options)
    parts = [decoder.push(id) for id in ids]
    return [*parts, decoder.finish()], decoder.stopped


@given(st.text())
def test_any_text_byte_by_byte(text):
    parts, stopped = stream(BYTES, ids_of(text.encode()))
    assert "".join(parts) == text
    assert stopped is None


@given(st.text(alphabet="a é😀ñ漢b\u0301"))
def test_byte_fallback_tokens(text):
    ids = WORDS.encode(text, add_special=False)
    parts, _ = stream(WORDS, ids)
    assert "".join(parts).removeprefix(" ") == text


@given(st.binary())
def test_invalid_bytes_equal_bulk_decoding(data):
    parts, _ = stream(BYTES, ids_of(data))
    assert "".join(parts) == data.decode(errors="replace")


@given(st.binary())
def test_nothing_is_emitted_that_could_change(data):
    """What is out after each byte is a prefix of the text under every continuation."""
    decoder = StreamDecoder(BYTES)
    text = ""
    for position, id in enumerate(ids_of(data), 1):
        text += decoder.push(id)
        for more in (b"", b"\x80", b"\xbf\xbf\xbf", b"\x98\x80", b"a"):
            assert (data[:position] + more).decode(errors="replace").startswith(text) or (
                # An incomplete character at the very end is U+FFFD only in a bulk decoding.
                more == b""
            )


def test_replacement_only_when_a_character_cannot_come_any_more():
    parts, _ = stream(BYTES, ids_of(b"\xf0\x9f\x98\x80\xf0\x9fa\xe2\x82"))
    assert parts == ["", "", "", "😀", "", "", "\ufffda", "", "", "\ufffd"]


def test_control_tokens_are_left_out_unless_asked_for():
    assert "".join(stream(BYTES, [BYTE_ID[b"a"], 256])[0]) == "a"
    assert "".join(stream(BYTES, [BYTE_ID[b"a"], 256], skip_special=False)[0]) == "a<|im_end|>"


# -- stop strings ---------------------------------------------------------------------------------


def first_stop(text, stops):
    """The stop string that ends first in `text`, the longest of those, and where it begins."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return longest, end - len(longest)
    return None, len(text)


STOPS = st.lists(st.text("abé", min_size=1, max_size=5), max_size=4)


@given(st.text("abé", max_size=40), STOPS)
def test_stop_strings_equal_a_search_of_the_whole(text, stops):
    expected, position = first_stop(text, stops)
    parts, stopped = stream(BYTES, ids_of(text.encode()), stop=stops)
    assert stopped == expected
    assert "".join(parts) == text[:position]


@given(st.lists(st.text("ab", max_size=6)), STOPS)
def test_no_part_of_a_stop_string_is_ever_emitted(chunks, stops):
    """The text that is out never ends in a way that a coming stop string would take back."""
    matcher = StopMatcher(stops)
    out, seen = "", ""
    for chunk in chunks:
        seen += chunk
        out += matcher.push(chunk)
        if matcher.matched is None:
            held = seen[len(out) :]
            assert seen.startswith(out)
            assert held == "" or any(stop.startswith(held) for stop in stops)
            for stop in stops:
                for n in range(1, len(stop)):
                    if seen.endswith(stop[:n]):
                        assert len(held) >= n


def test_stop_string_over_token_borders():
    decoder = StreamDecoder(BYTES, stop=["\nUser:", "###"])
    parts = [decoder.push(id) for id in ids_of(b"hi\nUse\nUser: x")]
    assert "".join(parts) == "hi\nUse"
    assert decoder.stopped == "\nUser:"
    assert decoder.push(BYTE_ID[b"z"]) == ""
    assert decoder.finish() == ""


def test_held_text_comes_out_at_the_end():
    decoder = StreamDecoder(BYTES, stop=["###"])
    assert [decoder.push(id) for id in ids_of(b"a##")] == ["a", "", ""]
    assert decoder.finish() == "##"
    assert decoder.stopped is None


def test_one_stop_string_may_stand_alone():
    assert StopMatcher("ab").push("xaby") == "x"


def test_empty_stop_string_is_refused():
    with pytest.raises(RequestError, match="empty"):
        StreamDecoder(BYTES, stop=[""])
