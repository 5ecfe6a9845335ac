"""Parsing token ids: characters of several tokens, stop strings, control tokens."""

import json
from pathlib import Path

import pytest
from answers import BY_NAME, TOOLS
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer.small_vocabularies import byte_level

import zinc
from zinc.chat import ChatTemplate
from zinc.chat.events import Answer, Content, Reasoning, merged
from zinc.chat.formats import detect
from zinc.chat.parser import AnswerParser, TokenParser, control_markers
from zinc.chat.reasoning import template_arguments
from zinc.core.errors import RequestError
from zinc.tokenizer import Tokenizer
from zinc.tokenizer.vocabulary import TokenKind

DEMO = Path(zinc.__file__).parent / "data" / "zinc-demo-30m-q4_k_m.gguf"
HARMONY = BY_NAME["harmony"]
ANSWER = (
    "<think>\nHm, 天气 🌧.\n</think>\n\nLet me look.\n<tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "Zürich 🌧"}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def demo():
    return Tokenizer.from_gguf(DEMO)


def vocabulary(markers, kind=TokenKind.CONTROL):
    return Tokenizer.from_metadata(byte_level(*((marker, kind) for marker in markers)))


def run(parser, ids):
    events = [event for id in ids for event in parser.push(id)]
    return merged(events + parser.finish())


def encode(tokenizer, text):
    return tokenizer.encode(text, add_special=False, parse_special=True)


# -- tokens ----------------------------------------------------------------------------------------


def test_the_embedded_model(demo):
    format = detect(demo.chat_template)
    assert format.name == "hermes"
    assert control_markers(demo, format) == {}
    answer = Answer.of(run(TokenParser(demo, format, TOOLS), encode(demo, ANSWER)))
    assert answer.reasoning == "Hm, 天气 🌧."
    assert answer.content == "Let me look."
    assert json.loads(answer.calls[0].arguments) == {"city": "Zürich 🌧"}


def test_no_event_holds_half_a_character(demo):
    parser = TokenParser(demo, BY_NAME["hermes"])
    text = "Zürich 🌧 天气"
    for id in text.encode():  # a byte at a time
        (piece,) = [i for i in range(demo.n_vocab) if demo.token_bytes(i) == bytes([id])][:1]
        for event in parser.push(piece):
            assert "\ufffd" not in event.text


@given(st.text(), st.sampled_from(["<think>", "", "Hi "]))
@settings(max_examples=100, deadline=None)
def test_token_ids_and_text_give_the_same_events(text, before):
    tokenizer = _DEMO
    ids = encode(tokenizer, before + text)
    parser = AnswerParser(BY_NAME["hermes"], TOOLS)
    whole = merged(parser.push(tokenizer.decode(ids)) + parser.finish())
    assert run(TokenParser(tokenizer, BY_NAME["hermes"], TOOLS), ids) == whole


_DEMO = Tokenizer.from_gguf(DEMO)


def test_control_tokens_count_only_as_tokens():
    tokenizer = vocabulary(HARMONY.markers)
    text = "<|channel|>final<|message|>Hello"
    assert set(control_markers(tokenizer, HARMONY).values()) == set(HARMONY.markers)
    real = run(TokenParser(tokenizer, HARMONY), encode(tokenizer, text))
    assert real == [Content("Hello")]
    typed = tokenizer.encode(text, add_special=False)
    assert run(TokenParser(tokenizer, HARMONY), typed) == [Content(text)]


def test_a_model_that_writes_markers_in_its_answer():
    tokenizer = vocabulary(HARMONY.markers)
    ids = encode(tokenizer, "<|channel|>final<|message|>Write ")
    ids += tokenizer.encode("<|channel|>analysis<|message|>.", add_special=False)
    ids += encode(tokenizer, "<|return|>")
    answer = Answer.of(run(TokenParser(tokenizer, HARMONY), ids))
    assert answer == Answer("Write <|channel|>analysis<|message|>.")


def test_other_control_tokens_are_not_text():
    tokenizer = vocabulary(["<|im_end|>", "<|box|>"])
    ids = encode(tokenizer, "a<|box|>b<|im_end|>")
    assert run(TokenParser(tokenizer, BY_NAME["hermes"]), ids) == [Content("ab")]


def test_user_defined_tokens_are_text():
    tokenizer = vocabulary(["<think>", "</think>"], TokenKind.USER_DEFINED)
    parser = TokenParser(tokenizer, BY_NAME["hermes"])
    assert run(parser, encode(tokenizer, "<think>a</think>b")) == [Reasoning("a"), Content("b")]


def test_bytes_before_a_marker_are_not_held_back():
    tokenizer = vocabulary(HARMONY.markers)
    ids = encode(tokenizer, "<|channel|>analysis<|message|>a")
    broken = tokenizer.encode("é", add_special=False)[:1]
    ids += broken + encode(tokenizer, "<|end|><|start|>assistant<|channel|>final<|message|>b")
    assert run(TokenParser(tokenizer, HARMONY), ids) == [Reasoning("a\ufffd"), Content("b")]


# -- prompts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "prompt", "opened"),
    [
        ("hermes", "<|im_start|>assistant\n<think>\n", "<think>"),
        ("hermes", "<|im_start|>assistant\n<think>\n\n</think>\n\n", ""),
        ("hermes", "<|im_start|>assistant\n", ""),
        ("deepseek", "<｜Assistant｜><think>\n", "<think>"),
        ("mistral", "[/INST][THINK]", "[THINK]"),
        ("gemma4", "<|turn>model\n<|channel>thought\n", "<|channel>thought\n"),
        ("gemma4", "<|turn>model\n<|channel>thought\n<channel|>", ""),
        ("harmony", "<|start|>user<|message|>x<|end|><|start|>assistant", ""),
        (
            "harmony",
            "<|start|>assistant<|channel|>analysis<|message|>",
            "<|channel|>analysis<|message|>",
        ),
        ("plain", "<think>", ""),
    ],
)
def test_the_beginning_of_the_answer_in_the_prompt(format, prompt, opened):
    assert BY_NAME[format].opened(prompt) == opened
    parser = AnswerParser(BY_NAME[format], TOOLS, opened, BY_NAME[format].markers)
    assert parser.is_thinking == bool(opened)


def test_the_template_of_the_embedded_model(demo):
    template = ChatTemplate.from_tokenizer(demo)
    format = detect(template.source)
    for enabled in (True, False):
        prompt = template.render([{"role": "user", "content": "Hi"}], **template_arguments(enabled))
        assert format.opened(prompt) == ""
        assert prompt.endswith("</think>\n\n") != enabled


# -- stop strings ----------------------------------------------------------------------------------


def test_stop_string(demo):
    parser = TokenParser(demo, BY_NAME["hermes"], stop=["look"])
    assert run(parser, encode(demo, ANSWER)) == [
        Reasoning("Hm, 天气 🌧."),
        Content("Let me "),
    ]
    assert parser.stopped == "look"
    assert parser.push(encode(demo, "a")[0]) == []


def test_stop_string_that_never_comes(demo):
    parser = TokenParser(demo, BY_NAME["hermes"], stop=["lookout", "me!"])
    assert run(parser, encode(demo, "Let me look")) == [Content("Let me look")]
    assert parser.stopped is None


def test_stop_string_inside_of_a_call(demo):
    parser = TokenParser(demo, BY_NAME["hermes"], TOOLS, stop=["rich"])
    answer = Answer.of(run(parser, encode(demo, ANSWER)))
    assert answer.calls[0].arguments == '{"city": "Zü'
    assert not answer.calls[0].complete


def test_stop_string_does_not_reach_over_a_control_token():
    tokenizer = vocabulary(HARMONY.markers)
    ids = encode(tokenizer, "<|channel|>analysis<|message|>ab<|end|><|start|>assistant")
    ids += encode(tokenizer, "<|channel|>final<|message|>cd")
    parser = TokenParser(tokenizer, HARMONY, stop=["bc"])
    assert run(parser, ids) == [Reasoning("ab"), Content("cd")]


def test_empty_stop_string(demo):
    with pytest.raises(RequestError):
        TokenParser(demo, BY_NAME["hermes"], stop=[""])


def test_no_events_after_the_end(demo):
    parser = TokenParser(demo, BY_NAME["hermes"])
    assert parser.push(encode(demo, "<")[0]) == []
    assert parser.finish() == [Content("<")]
    assert parser.finish() == []
    assert AnswerParser(BY_NAME["plain"]).finish() == []


def test_template_arguments():
    assert template_arguments() == {}
    assert template_arguments(False) == {"enable_thinking": False, "thinking": False}
    assert template_arguments(effort="low") == {"reasoning_effort": "low"}
