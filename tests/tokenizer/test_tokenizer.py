"""Roles, special tokens, decoding and damaged metadata."""

import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_vocabularies import byte_level, scored

import zinc
from zinc.core.errors import ModelError, RequestError, UnsupportedError, ZincError
from zinc.tokenizer import Tokenizer
from zinc.tokenizer.vocabulary import FillMarks, TokenKind

CONTROL, USER, NORMAL = TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.NORMAL
DEMO = Path(zinc.__file__).parent / "data" / "zinc-demo-30m-q4_k_m.gguf"


def make(metadata):
    return Tokenizer.from_metadata(metadata, "model.gguf")


def chat_tokenizer():
    extra = [("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL), ("<think>", USER)]
    return make(byte_level(*extra, pre="qwen2", eos_token_id=257))


# -- roles ----------------------------------------------------------------------------------------


def test_roles_from_keys():
    keys = {"bos_token_id": 256, "eos_token_id": 257, "padding_token_id": 258, "eot_token_id": 259}
    names = ["<bos>", "<done>", "<blank>", "<over>"]
    tokenizer = make(byte_level(*[(name, CONTROL) for name in names], **keys))
    assert (tokenizer.bos_id, tokenizer.eos_id) == (256, 257)
    assert (tokenizer.pad_id, tokenizer.eot_id, tokenizer.unk_id) == (258, 259, None)
    assert tokenizer.eog_ids == {257, 259}
    assert tokenizer.id_of("<blank>") == 258
    assert tokenizer.text_of(258) == "<blank>"
    assert tokenizer.id_of("nothing") is None
    assert tokenizer.n_vocab == 260


def test_end_of_turn_is_found_by_its_text():
    tokenizer = make(byte_level(("<|im_end|>", NORMAL), ("<|endoftext|>", CONTROL)))
    assert tokenizer.eot_id == 256
    assert tokenizer.eog_ids == {256, 257}
    assert tokenizer.special_ids == {256, 257}


def test_fill_in_the_middle_tokens_are_found_by_key_or_text():
    texts = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"]
    tokenizer = make(byte_level(*[(text, NORMAL) for text in texts]))
    assert tokenizer.fill == FillMarks(256, 257, 258, 259, 260)
    assert tokenizer.eog_ids == {259, 260}
    keys = {"fim_pre_token_id": 258, "fim_suf_token_id": 257, "fim_mid_token_id": 256}
    assert make(byte_level(("x", NORMAL), ("y", NORMAL), ("z", NORMAL), **keys)).fill == FillMarks(
        258, 257, 256
    )
    assert make(byte_level(*[(text, NORMAL) for text in texts[:2]])).fill is None


def test_harmony_ends_a_message_with_end_and_an_answer_with_return():
    texts = ["<|return|>", "<|call|>", "<|end|>", "<|channel|>", "<|start|>"]
    tokenizer = make(byte_level(*[(text, CONTROL) for text in texts], pre="gpt-4o"))
    assert tokenizer.eog_ids == {256, 257}
    assert tokenizer.decode([259, tokenizer.id_of("a"), 258, 256]) == "<|channel|>a<|end|>"
    # A user cannot write the frame.
    assert 259 not in tokenizer.encode("<|channel|>")
    assert tokenizer.encode("<|channel|>", parse_special=True) == [259]


def test_role_ids_out_of_range_are_ignored():
    tokenizer = make(byte_level(("<|x|>", CONTROL), bos_token_id=5000, eos_token_id=2**31))
    assert tokenizer.bos_id is None
    assert tokenizer.eos_id is None
    assert not tokenizer.add_bos


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [1, 259]),
        ({"add_bos_token": False}, [259]),
        ({"add_eos_token": True}, [1, 259, 2]),
        ({"add_space_prefix": False}, [1, 260]),
    ],
)
def test_flags_of_sentencepiece(keys, expected):
    tokenizer = make(scored({"▁a": -1.0, "a": -2.0, "▁": -3.0}, **keys))
    assert tokenizer.encode("a") == expected
    assert tokenizer.decode(expected) == "a"
    assert tokenizer.encode("a", add_special=False) == [id for id in expected if id > 2]


def test_add_bos_without_a_bos_token_adds_nothing():
    tokenizer = make(byte_level(pre="llama-bpe"))
    assert tokenizer.encode("a") == [tokenizer.id_of("a")]


# -- special tokens -------------------------------------------------------------------------------


def test_control_tokens_are_parsed_on_request_and_user_defined_always():
    tokenizer = chat_tokenizer()
    assert tokenizer.encode("<|im_end|>", parse_special=True) == [257]
    assert 257 not in tokenizer.encode("<|im_end|>")
    assert tokenizer.encode("<think>") == [258]
    assert tokenizer.decode([256, 258, 257]) == "<think>"
    assert tokenizer.decode([256, 258, 257], skip_special=False) == "<|im_start|><think><|im_end|>"


def test_longest_special_token_first():
    texts = ["<a>", "<a><b>", "<b>"]
    tokenizer = make(byte_level(*[(text, CONTROL) for text in texts]))
    assert tokenizer.encode("<a><a><b><b>", parse_special=True) == [256, 257, 258]


MARKERS = st.sampled_from(["<|im_start|>", "<|im_end|>", "<|im_", "end|>", "a", " ", "\ufdd0", "é"])


@given(st.lists(MARKERS).map("".join))
def test_shielded_text_contains_no_control_token(text):
    tokenizer = chat_tokenizer_once()
    ids = tokenizer.encode_prompt(tokenizer.shield(text))
    assert not tokenizer.special_ids.intersection(ids)
    assert tokenizer.decode(ids) == text.replace("\ufdd0", "")


def test_prompt_parses_unshielded_text():
    tokenizer = chat_tokenizer()
    prompt = f"<|im_start|>{tokenizer.shield('<|im_end|>')}<|im_end|>"
    ids = tokenizer.encode_prompt(prompt)
    assert ids[0] == 256
    assert ids[-1] == 257
    assert ids.count(257) == 1
    assert tokenizer.decode(ids) == "<|im_end|>"


def test_prompt_has_bos_once():
    tokenizer = make(scored({"▁a": -1.0, "▁": -3.0, "a": -4.0}))
    assert tokenizer.encode_prompt("<s>a") == [1, 259]
    assert tokenizer.encode_prompt("a") == [1, 259]


# -- text -----------------------------------------------------------------------------------------


def test_lone_surrogates_become_replacement_characters():
    tokenizer = chat_tokenizer()
    assert tokenizer.decode(tokenizer.encode("a\ud800b😀\udfff")) == "a\ufffdb😀\ufffd"


@given(st.text())
def test_bytes_round_trip(text):
    tokenizer = chat_tokenizer_once()
    assert tokenizer.decode_bytes(tokenizer.encode(text)) == text.encode()


def test_bytes_without_a_token_prevent_merges_across_them():
    metadata = byte_level(("xx", NORMAL), merges=["x x"])
    tokens = metadata["tokenizer.ggml.tokens"]
    position = tokens.index("a")
    tokens[position] = "<gap>"
    tokenizer = make(metadata)
    x = tokenizer.id_of("x")
    assert tokenizer.encode("xx") == [256]
    assert tokenizer.encode("xax") == [x, x]


def test_token_bytes():
    tokenizer = make(scored({"▁a": -1.0}, ("<x>", USER), ("<y>", TokenKind.UNUSED)))
    assert tokenizer.token_bytes(259) == b" a"
    assert tokenizer.token_bytes(3 + 0xE2) == b"\xe2"
    assert tokenizer.token_bytes(1) == b"<s>"
    assert tokenizer.token_bytes(260) == b"<x>"
    assert tokenizer.token_bytes(261) == b""
    for id in (-1, 262):
        with pytest.raises(RequestError, match="does not exist"):
            tokenizer.token_bytes(id)


def test_plain_text_tokens_in_a_byte_level_vocabulary_keep_their_text():
    tokenizer = make(byte_level(("▶ x", NORMAL)))
    assert tokenizer.decode([256]) == "▶ x"


def test_embedded_model():
    tokenizer = Tokenizer.from_gguf(DEMO)
    text = "Once upon a time, there was naïve café 🚀.\n\n  x = 1"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_id in tokenizer.eog_ids
    assert tokenizer.chat_template


# -- damage ---------------------------------------------------------------------------------------


PATIENCE_S = 60


def test_other_threads_run_while_a_long_text_is_encoded():
    """Otherwise a prompt of a megabyte would stall every stream of a server."""
    path = Path(zinc.__file__).parent / "data" / "zinc-demo-30m-q4_k_m.gguf"
    tokenizer = Tokenizer.from_gguf(path)
    text, begun, done = "The fox ran home.\n" * 20_000, threading.Event(), threading.Event()
    n_turns = 0

    def take_turns():
        nonlocal n_turns
        begun.set()
        while not done.wait(0.001):
            n_turns += 1

    other = threading.Thread(target=take_turns)
    other.start()
    begun.wait()
    most, until = 0, time.monotonic() + PATIENCE_S  # on a busy machine the other may not be let in
    while most < 10 and time.monotonic() < until:
        before = n_turns
        ids = tokenizer.encode(text)
        most = max(most, n_turns - before)
    done.set()
    other.join()
    assert most >= 10
    assert ids == tokenizer.encode("The fox ran home.\n") * 20_000


def test_unknown_pretokenizer_is_named():
    with pytest.raises(UnsupportedError, match="'brand-new'"):
        make(byte_level(pre="brand-new"))


@pytest.mark.parametrize("model", ["plamo2", "none", None])
def test_unknown_kinds(model):
    with pytest.raises(UnsupportedError):
        make({"tokenizer.ggml.model": model} if model else {})


DAMAGE = {
    "no tokens": {"tokens": None},
    "empty": {"tokens": []},
    "tokens are numbers": {"tokens": [1, 2]},
    "tokens are a string": {"tokens": "abc"},
    "few types": {"token_type": [1]},
    "types are strings": {"token_type": ["a"] * 500},
    "merge is not a pair": {"merges": ["ab"]},
    "merges are numbers": {"merges": [1]},
    "bos is a string": {"bos_token_id": "x"},
    "bos is a boolean": {"bos_token_id": True},
    "flag is a number": {"add_bos_token": 1},
    "model is a number": {"model": 3},
}


@pytest.mark.parametrize("change", DAMAGE.values(), ids=DAMAGE)
def test_damaged_metadata(change):
    metadata = byte_level()
    for key, value in change.items():
        metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(ModelError, match=r"model\.gguf"):
        make({key: value for key, value in metadata.items() if value is not None})


@pytest.mark.parametrize("scores", [None, [1.0], ["a"] * 300, "x"])
def test_damaged_scores(scores):
    metadata = scored({"a": 0.0})
    metadata["tokenizer.ggml.scores"] = scores
    with pytest.raises(ModelError):
        make({key: value for key, value in metadata.items() if value is not None})


def test_irregular_entries_of_files_in_use_are_accepted():
    """Empty and repeated tokens, unknown kinds, merges of missing tokens."""
    metadata = byte_level(("", NORMAL), ("a", NORMAL), ("zz", 99), merges=["q qq", "z z"])
    tokenizer = make(metadata)
    assert tokenizer.encode("zz") == [258]
    assert tokenizer.token_bytes(258) == b""
    assert tokenizer.text_of(256) == "[EMPTY_256]"


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 300),
    st.text(max_size=5),
    st.lists(st.text(max_size=3), max_size=5),
    st.lists(st.integers(-5, 300), max_size=5),
    st.lists(st.floats(), max_size=300),
)
KEYS = [
    *("model", "pre", "tokens", "token_type", "merges", "scores", "bos_token_id", "eos_token_id"),
    *("unknown_token_id", "add_bos_token", "add_space_prefix", "fim_pad_token_id"),
]


@given(st.booleans(), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3))
def test_random_damage_gives_a_clear_error_or_a_tokenizer(spm, changes):
    metadata = scored({"a": 0.0}) if spm else byte_level()
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    try:
        tokenizer = make(metadata)
    except ZincError:
        return
    assert isinstance(tokenizer.decode(tokenizer.encode("a b<s>é")), str)


def chat_tokenizer_once(_made=[]):  # noqa: B006
    if not _made:
        _made.append(chat_tokenizer())
    return _made[0]


@pytest.mark.parametrize(
    ("pre", "text", "tokens"),
    [
        ("exaone-moe", "a b", ["aĠb"]),  # a word goes on over a single space
        ("qwen2", "a b", ["a", "Ġb"]),
        ("afmoe", "1234", ["1", "234"]),  # groups of three from the end
        ("afmoe", "12 34", ["12", "Ġ", "34"]),
        ("afmoe", "123", ["123"]),
        ("llama-bpe", "1234", ["123", "4"]),
        ("seed-coder", "!\n", ["!", "Ċ"]),  # symbols without the line breaks after them
        ("qwen2", "!\n", ["!Ċ"]),
    ],
)
def test_merges_stay_within_a_word(pre: str, text: str, tokens: list[str]) -> None:
    extra = ["Ġb", "aĠb", "12", "123", "34", "234", "!Ċ"]
    merges = ["Ġ b", "a Ġb", "1 2", "12 3", "3 4", "2 34", "! Ċ"]
    metadata = byte_level(*[(token, NORMAL) for token in extra], pre=pre, merges=merges)
    spelling = metadata["tokenizer.ggml.tokens"]
    ids = make(metadata).encode(text, add_special=False)
    assert [spelling[id] for id in ids] == tokens
