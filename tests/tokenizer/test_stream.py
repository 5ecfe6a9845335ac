"""Streaming gives the same text as decoding all tokens at once, and ends at stop strings."""

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
def test_emitted_text_never_changes(data):
    """The text after each byte is a prefix of the final text, whatever follows."""
    decoder = StreamDecoder(BYTES)
    text = ""
    for position, id in enumerate(ids_of(data), 1):
        text += decoder.push(id)
        for more in (b"", b"\x80", b"\xbf\xbf\xbf", b"\x98\x80", b"a"):
            assert (data[:position] + more).decode(errors="replace").startswith(text) or (
                # An incomplete character at the very end is U+FFFD only in a bulk decoding.
                more == b""
            )


def test_incomplete_characters_are_held_back_until_invalid():
    parts, _ = stream(BYTES, ids_of(b"\xf0\x9f\x98\x80\xf0\x9fa\xe2\x82"))
    assert parts == ["", "", "", "😀", "", "", "\ufffda", "", "", "\ufffd"]


def test_control_tokens_are_left_out_by_default():
    assert "".join(stream(BYTES, [BYTE_ID[b"a"], 256])[0]) == "a"
    assert "".join(stream(BYTES, [BYTE_ID[b"a"], 256], skip_special=False)[0]) == "a<|im_end|>"


# -- stop strings ---------------------------------------------------------------------------------


def first_stop(text, stops):
    """Return the longest of the stop strings that end first in `text`, and where it begins."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return longest, end - len(longest)
    return None, len(text)


STOPS = st.lists(st.text("abé", min_size=1, max_size=5), max_size=4)


@given(st.text("abé", max_size=40), STOPS)
def test_stop_strings_match_a_search_of_the_whole_text(text, stops):
    expected, position = first_stop(text, stops)
    parts, stopped = stream(BYTES, ids_of(text.encode()), stop=stops)
    assert stopped == expected
    assert "".join(parts) == text[:position]


@given(st.lists(st.text("ab", max_size=6)), STOPS)
def test_no_part_of_a_stop_string_is_ever_emitted(chunks, stops):
    """Emitted text never ends with the beginning of a stop string that is then found."""
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


def test_stop_string_across_tokens():
    decoder = StreamDecoder(BYTES, stop=["\nUser:", "###"])
    parts = [decoder.push(id) for id in ids_of(b"hi\nUse\nUser: x")]
    assert "".join(parts) == "hi\nUse"
    assert decoder.stopped == "\nUser:"
    assert decoder.push(BYTE_ID[b"z"]) == ""
    assert decoder.finish() == ""


def test_held_text_is_returned_at_the_end():
    decoder = StreamDecoder(BYTES, stop=["###"])
    assert [decoder.push(id) for id in ids_of(b"a##")] == ["a", "", ""]
    assert decoder.finish() == "##"
    assert decoder.stopped is None


def test_a_single_stop_string_needs_no_list():
    assert StopMatcher("ab").push("xaby") == "x"


def test_empty_stop_string_is_refused():
    with pytest.raises(RequestError, match="empty"):
        StreamDecoder(BYTES, stop=[""])
