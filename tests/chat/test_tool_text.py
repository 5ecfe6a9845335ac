"""Tools for templates that have no place for them: what the model reads, and how it is parsed."""

import json

import pytest
from answers import BY_NAME, TOOLS, answer

from zinc.chat import ChatTemplate
from zinc.chat.formats import FORMATS
from zinc.chat.messages import prepare
from zinc.chat.tool_text import description, format_for_tools
from zinc.chat.traits import TemplateTraits

# Alternates turns of the user and the model, as Gemma's template does.
GEMMA = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}"
    "<end_of_turn>\n{% endfor %}"
)
# Writes calls, but not the tools, as the templates of DeepSeek R1 and V3 do.
DEEPSEEK = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "<｜tool▁calls▁begin｜>{{ c.function.name }}<｜tool▁sep｜>```json {{ c.function.arguments }}"
    "{% endfor %}{% endfor %}"
)
ARGUMENTS = {
    "city": 'Oslo "Ø"\n',
    "days": 3,
    "metric": True,
    "tags": ["a", "it's"],
    "options": {"x": None, "y": -1.5},
}
WRITTEN = [format for format in FORMATS if format.text]


def calls(*pairs):
    return [
        {"id": f"c{i}", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for i, (name, arguments) in enumerate(pairs)
    ]


@pytest.mark.parametrize("format", WRITTEN, ids=lambda format: format.name)
@pytest.mark.parametrize("arguments", [ARGUMENTS, {}])
def test_a_written_call_is_parsed(format, arguments):
    (call,) = answer(format.name, [format.text.call("get_weather", arguments)]).calls
    assert (call.name, json.loads(call.arguments), call.complete) == (
        *("get_weather", arguments),
        True,
    )


@pytest.mark.parametrize("format", WRITTEN, ids=lambda format: format.name)
def test_the_description_names_tools_and_the_form_of_a_call(format):
    text = description(TOOLS, format.text)
    for tool in TOOLS:
        assert json.dumps(tool["function"]) in text
    assert format.text.call("tool_name", {"argument": "value"}) in text


def test_formats_without_calls_use_those_of_hermes():
    assert format_for_tools(BY_NAME["plain"]).name == "hermes"
    assert format_for_tools(BY_NAME["thinking-only"]).name == "hermes"
    assert format_for_tools(BY_NAME["gemma3"]).name == "gemma3"


def test_a_conversation_with_calls_alternates():
    template = ChatTemplate(GEMMA)
    traits, text = TemplateTraits.of(template), template.format.text
    assert not traits.tools
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": calls(("get_weather", {"city": "Oslo"}), ("now", {})),
        },
        {"role": "tool", "tool_call_id": "c0", "content": "rain"},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "noon"}]},
        {"role": "user", "content": "Well?"},
    ]
    prepared = prepare(messages, traits, TOOLS, text)
    assert [message["role"] for message in prepared] == ["user", "assistant", "user"]
    first, called, results = (message["content"] for message in prepared)
    assert first == f"{description(TOOLS, text)}\n\nBe brief.\n\nWeather?"
    assert called == "I look.\n" + "\n".join(
        f"```tool_code\n{each}\n```" for each in ("get_weather(city='Oslo')", "now()")
    )
    assert results == ("```tool_output\nrain\n```\n\n```tool_output\nnoon\n```\n\nWell?")
    assert "Well?<end_of_turn>" in template.render(prepared)
    assert "name" not in prepared[2]


def test_a_template_that_writes_calls_keeps_them():
    template = ChatTemplate(DEEPSEEK)
    traits, text = TemplateTraits.of(template), template.format.text
    assert not traits.tools
    assert traits.renders_calls
    messages = [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "tool_calls": calls(("now", {}))},
        {"role": "tool", "tool_call_id": "c0", "content": "noon"},
    ]
    prepared = prepare(messages, traits, TOOLS, text)
    assert [message["role"] for message in prepared] == ["system", "user", "assistant", "tool"]
    assert prepared[0]["content"] == description(TOOLS, text)
    assert prepared[2]["tool_calls"][0]["function"]["name"] == "now"
    assert prepare(messages, traits, (), text) == prepared[1:]


def test_arguments_that_are_no_json_are_shown_unchanged():
    broken = [{"id": "c", "function": {"name": "add", "arguments": '{"a": 1'}}]
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "tool_calls": broken}]
    no_calls = TemplateTraits(tools=False, object_arguments=False, text_arguments=False)
    prepared = prepare(messages, no_calls, TOOLS, BY_NAME["hermes"].text)
    assert json.dumps('{"a": 1') in prepared[-1]["content"]


def test_templates_with_tools_are_left_alone():
    messages = [{"role": "user", "content": "Q"}]
    assert prepare(messages, TemplateTraits(), TOOLS, BY_NAME["hermes"].text) == messages
