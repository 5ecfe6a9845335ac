"""Adapting messages to templates, and detecting formats, with small templates."""

import json

import pytest

from zinc.chat import ChatTemplate
from zinc.chat.formats import FORMATS, detect
from zinc.chat.messages import prepare, text_of
from zinc.chat.traits import TemplateTraits
from zinc.core.errors import RequestError, UnsupportedError, ZincError

HEAD = """\
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}[{{ m.role }}]"""
TAIL = "{% endfor %}"
CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.name }}"
# A template like Qwen 3's: both forms of arguments, content before calls, reasoning.
FULL = (
    HEAD
    + "{{ m.reasoning_content or '' }}{{ m.content + '' }}"
    + CALLS
    + "{% set a = c.function.arguments %}{{ a if a is string else a | tojson }}{% endfor %}"
    + TAIL
)
OBJECT = HEAD + "{{ m.content or '' }}" + CALLS + "{{ c.function.arguments | tojson }}{% endfor %}"
OBJECT += TAIL
TEXT = HEAD + "{{ m.content or '' }}" + CALLS + "{{ '' + c.function.arguments }}{% endfor %}" + TAIL
PRINTED = HEAD + "{{ m.content }}" + CALLS + "{{ c.function.arguments }}{% endfor %}" + TAIL
ONE_CALL = (
    "{%- for m in messages %}{{ m.content or '' }}{% if m.tool_calls %}"
    "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
    "{{ m.tool_calls[0].function | tojson }}{% endif %}{% endfor %}"
)
FIRST_CALL = ONE_CALL.replace("{{ raise_exception('one call') }}", "")
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
SHORT_IDS = (
    "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
    "{{ c.id }}{{ c.function | tojson }}{% endfor %}{{ m.tool_call_id }}{% endfor %}"
)
THINKING = (
    "{% for m in messages %}{% if m.tool_calls %}{% if m.content and m.thinking %}"
    "{{ raise_exception('either') }}{% endif %}{{ m.thinking or m.content }}"
    "{{ m.tool_calls[0].function.arguments | tojson }}{% else %}{{ m.content }}{% endif %}"
    "{% endfor %}"
)
CALL_OR_TEXT = (
    "{% for m in messages %}{% if m.content is none %}{{ m.tool_calls | tojson }}{% else %}"
    "{{ m.content }}{% endif %}{% endfor %}"
)


def traits(source):
    return TemplateTraits.of(ChatTemplate(source))


def call(name, arguments, id="call_0"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def conversation(*calls, **message):
    results = [{"role": "tool", "tool_call_id": c["id"], "content": f"r{c['id']}"} for c in calls]
    return [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": None, "tool_calls": list(calls), **message},
        *results,
    ]


# -- traits ----------------------------------------------------------------------------------------


def test_defaults_are_those_of_a_full_template():
    assert traits(FULL) == TemplateTraits()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (OBJECT, {"text_arguments": False, "null_content": True, "reasoning_key": None}),
        (TEXT, {"object_arguments": False, "null_content": True, "reasoning_key": None}),
        (PRINTED, {"object_arguments": False, "reasoning_key": None}),
        (ONE_CALL, {"parallel_calls": False}),
        (FIRST_CALL, {"parallel_calls": False}),
        (NO_SYSTEM, {"system_role": False, "tools": False}),
        (SHORT_IDS, {"short_ids": True}),
        (THINKING, {"reasoning_key": "thinking", "reasoning_with_content": False}),
        (CALL_OR_TEXT, {"null_content": True, "content_with_calls": False}),
    ],
)
def test_traits(source, expected):
    found = traits(source)
    assert {key: getattr(found, key) for key in expected} == expected


def test_a_template_that_always_fails_has_traits():
    assert not traits("{{ raise_exception('no') }}").tools


# -- content ---------------------------------------------------------------------------------------


def test_parts_become_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert text_of(parts, "m") == "a\nb"
    assert text_of(None, "m") == ""
    assert text_of([], "m") == ""
    (message,) = prepare([{"role": "user", "content": parts}], TemplateTraits())
    assert message == {"role": "user", "content": "a\nb"}


@pytest.mark.parametrize(
    ("message", "error", "where"),
    [
        ("Hi", RequestError, "messages[1]"),
        ({"content": "x"}, RequestError, "messages[1].role"),
        ({"role": "bot", "content": "x"}, RequestError, "'bot'"),
        ({"role": "user", "content": 3}, RequestError, "messages[1].content"),
        ({"role": "user", "content": [3]}, RequestError, "content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, RequestError, "content[0].text"),
        ({"role": "user", "content": [{"type": "image_url"}]}, UnsupportedError, "image_url"),
        ({"role": "assistant", "tool_calls": 3}, RequestError, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": [{}]}, RequestError, "tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [call(3, "")]}, RequestError, "tool_calls[0]"),
    ],
)
def test_bad_messages(message, error, where):
    with pytest.raises(error) as caught:
        prepare([{"role": "user", "content": "Hi"}, message], TemplateTraits())
    assert where in str(caught.value)
    assert isinstance(caught.value, ZincError)


def test_the_original_messages_are_not_changed():
    messages = conversation(call("add", '{"a": 1}'))
    before = json.dumps(messages)
    prepare(messages, TemplateTraits(short_ids=True, parallel_calls=False))
    assert json.dumps(messages) == before


# -- calls -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ['{"a": "é"}', {"a": "é"}])
def test_arguments_in_the_form_of_the_template(arguments):
    messages = conversation(call("add", arguments))
    for source in (FULL, OBJECT, TEXT, PRINTED, ONE_CALL, SHORT_IDS, CALL_OR_TEXT):
        prompt = ChatTemplate(source).render(prepare(messages, traits(source)))
        assert '{"a": "é"}' in prompt, source
        assert "None" not in prompt.replace("tool_call_id", "")


def test_no_arguments():
    for arguments in ("", "  ", "null", None, "{}"):
        prepared = prepare(conversation(call("now", arguments)), TemplateTraits())
        assert prepared[1]["tool_calls"][0]["function"]["arguments"] == {}


def test_invalid_arguments_written_by_a_model():
    messages = conversation(call("add", '{"a": 1'))
    prepared = prepare(messages, TemplateTraits())
    assert prepared[1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1'
    with pytest.raises(RequestError, match=r"messages\[1\].tool_calls\[0\].function.arguments"):
        prepare(messages, TemplateTraits(text_arguments=False))


def test_results_get_the_name_of_their_tool():
    prepared = prepare(conversation(call("add", "{}", "x"), call("now", "{}", "y")), traits(FULL))
    assert [message.get("name") for message in prepared[2:]] == ["add", "now"]


@pytest.mark.parametrize("source", [ONE_CALL, FIRST_CALL])
def test_several_calls_become_several_messages(source):
    messages = conversation(call("add", "{}", "x"), call("now", "{}", "y"), content="Look:")
    messages += [{"role": "user", "content": "Thanks"}]
    prepared = prepare(messages, traits(source))
    assert [message["role"] for message in prepared] == [
        "user", "assistant", "tool", "assistant", "tool", "user",
    ]  # fmt: skip
    prompt = ChatTemplate(source).render(prepared)
    order = [prompt.index(text) for text in ("Look:", '"add"', "rx", '"now"', "ry", "Thanks")]
    assert order == sorted(order)
    assert prompt.count("Look:") == 1


def test_ids_of_nine_characters():
    messages = conversation(
        call("add", "{}", "call_with_a_long_id"), call("now", "{}", "abcdefgh9")
    )
    prepared = prepare(messages, traits(SHORT_IDS))
    first, second = (c["id"] for c in prepared[1]["tool_calls"])
    assert len(first) == 9
    assert first.isalnum()
    assert second == "abcdefgh9"
    assert [message["tool_call_id"] for message in prepared[2:]] == [first, second]
    assert prepare(messages, traits(SHORT_IDS)) == prepared


def test_reasoning_has_the_name_that_the_template_reads():
    for key in ("reasoning_content", "reasoning", "thinking"):
        prepared = prepare(conversation(call("add", "{}"), **{key: "Hm."}), traits(THINKING))
        assert prepared[1]["thinking"] == "Hm."
        assert "reasoning_content" not in prepared[1]
    both = prepare(
        conversation(call("add", "{}"), reasoning="Hm.", content="So."), traits(THINKING)
    )
    assert "Hm.\n\nSo." in ChatTemplate(THINKING).render(both)


def test_text_is_dropped_if_the_template_cannot_show_it_with_calls():
    messages = conversation(call("add", "{}"), content="So.")
    prompt = ChatTemplate(CALL_OR_TEXT).render(prepare(messages, traits(CALL_OR_TEXT)))
    assert "add" in prompt


# -- system prompts and tools ----------------------------------------------------------------------


def test_system_messages():
    messages = [
        {"role": "system", "content": "A"},
        {"role": "developer", "content": [{"type": "text", "text": "B"}]},
        {"role": "user", "content": "Q"},
    ]
    assert prepare(messages, traits(FULL)) == [
        {"role": "system", "content": "A\n\nB"},
        {"role": "user", "content": "Q"},
    ]
    assert prepare(messages, traits(NO_SYSTEM)) == [{"role": "user", "content": "A\n\nB\n\nQ"}]


# -- detection -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("<|channel|>analysis<|message|>", "harmony"),
        ("<|turn>model <|tool_call>call:", "gemma4"),
        ("<｜tool▁calls▁begin｜>x<｜tool▁sep｜>```json", "deepseek"),
        ("<think><｜tool▁calls▁begin｜>x<｜tool▁sep｜>", "deepseek-v3.1"),
        ("[INST] [TOOL_CALLS]", "mistral"),
        ("<think><tool_call>{name}<arg_key>", "glm"),
        ("<think><tool_call><function=f><parameter=p>", "qwen-tags"),
        ('<|START_ACTION|>[{"tool_call_id": "0", "tool_name": ""}]', "command"),
        ('<think><function name="f"><param name="p">', "minicpm"),
        ("<|im_start|>system List of tools: <|tool_list_start|>[", "lfm2"),
        ("<|im_start|>system List of tools: [ <think>", "lfm2"),
        ("<|START_OF_TURN_TOKEN|>Write 'Action:' [{\"tool_name\": title}]", "command-r"),
        ("'<tool_calls{}>'.format(':opensource') '<arg_key{}>'", "hy3"),
        ("<|start_of_role|>respond with <|tool_call|>", "granite"),
        ("<seed:think><seed:tool_call><function=f><parameter=p>", "seed"),
        ('<think><minimax:tool_call><invoke name="f"><parameter name="p">', "minimax"),
        ('<think><tool_call>{"name": 1, "arguments": 2}</tool_call>', "hermes"),
        ("<|start_header_id|><|python_tag|>", "llama"),
        ("<start_of_turn>user", "gemma3"),
        ("<|im_start|><think>", "thinking-only"),
        ("<|im_start|>", "plain"),
        ("", "plain"),
    ],
)
def test_detect(source, name):
    assert detect(source).name == name


def test_names_of_formats_are_unique():
    names = [format.name for format in FORMATS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("format", FORMATS)
def test_all_markers_are_listed(format):
    used = {*format.calls, *format.channels}
    if format.thinking is not None:
        used |= {format.thinking.end}
    assert used <= set(format.markers)
