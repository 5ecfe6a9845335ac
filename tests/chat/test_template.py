"""Chat templates: Hugging Face's environment, the sandbox, and prompts as token ids."""

import contextlib
import json
from datetime import datetime
from enum import IntEnum
from pathlib import Path

import pytest

import zinc
from zinc.chat import ChatTemplate
from zinc.core.errors import RequestError, TemplateError
from zinc.tokenizer import Tokenizer

DEMO = Path(zinc.__file__).parent / "data" / "zinc-demo-30m-q4_k_m.gguf"
USER = [{"role": "user", "content": "Hi"}]
CHATML = """\
{%- for message in messages %}
    {%- if message.role not in ["system", "user", "assistant", "tool"] %}
        {{- raise_exception("unknown role " + message.role) }}
    {%- endif %}
    {{- "<|im_start|>" ~ message.role ~ "\\n" ~ message.content | trim ~ "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|im_start|>assistant\\n" }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- "<think>\\n\\n</think>\\n\\n" }}
    {%- endif %}
{%- endif %}"""


def render(source, messages=USER, **arguments):
    return ChatTemplate(source, "<s>", "</s>").render(messages, **arguments)


# -- variables and functions of templates ---------------------------------------------------------


def test_messages_and_generation_prompt():
    conversation = [{"role": "system", "content": " Be nice.\n"}, *USER]
    text = "<|im_start|>system\nBe nice.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert render(CHATML, conversation) == text + "<|im_start|>assistant\n"
    assert render(CHATML, conversation, add_generation_prompt=False) == text


def test_arguments_reach_the_template():
    assert render(CHATML, enable_thinking=False).endswith("assistant\n<think>\n\n</think>\n\n")
    assert render(CHATML, enable_thinking=True).endswith("assistant\n")
    assert render("{{ reasoning_effort }}|{{ other }}", reasoning_effort="high") == "high|"
    assert render("{{ bos_token }}{{ eos_token }}{{ tools is none }}") == "<s></s>True"


# As in templates of models with images: text in a string is left out.
PARTS = """\
{%- for message in messages %}<|{{ message.role }}|>
    {%- for part in message.content %}
        {%- if part.type == "text" %}{{ part.text }}{% endif %}
    {%- endfor %}
{%- endfor %}"""


def test_templates_that_read_parts_get_parts():
    conversation = [
        {"role": "system", "content": "Be nice."},
        *USER,
        {"role": "assistant", "content": "Hello"},
        {"role": "tool", "content": "21"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    text = "<|system|>Be nice.<|user|>Hi<|assistant|>Hello<|tool|>21<|user|>ab"
    assert render(PARTS, conversation) == text
    begun = conversation[1:3]
    assert render(PARTS, begun, continue_final_message=True) == "<|user|>HiHello"
    first = "{% for m in messages %}{{ m.content[0]['text'] | trim }};{% endfor %}"
    assert render(first, conversation[:3]) == "Be nice.;Hi;Hello;"
    fails = "{% for m in messages %}{{ m.content[0].text.strip() }};{% endfor %}"
    assert render(fails, conversation[:3]) == "Be nice.;Hi;Hello;"


def test_each_role_gets_the_form_that_the_template_reads():
    conversation = [
        {"role": "system", "content": "Be nice."}, *USER, {"role": "assistant", "content": "Hello"}
    ]  # fmt: skip
    source = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content[0].text }}"
    source += "{% else %}{{ m.content }}{% endif %};{% endfor %}"
    assert render(source, conversation) == "Be nice.;Hi;Hello;"
    for both in (CHATML, "{{ messages[0].content if messages[0].content is string else 1 }}", "x"):
        assert not any(map(ChatTemplate(both).reads_parts, ("system", "user", "assistant", "tool")))


def test_block_whitespace():
    source = "{% if true %}\n  a\n  {% endif %}\nb\n"
    assert render(source) == "  a\nb"


def test_tojson_is_plain_json():
    value = {"b": "é<&'\"", "a": [1, None, True]}
    assert render("{{ v | tojson }}", v=value) == json.dumps(value, ensure_ascii=False)
    options = "ensure_ascii=True, indent=2, separators=(',', ':'), sort_keys=True"
    assert render("{{ v | tojson(" + options + ") }}", v=value) == json.dumps(
        value, indent=2, separators=(",", ":"), sort_keys=True
    )


def test_loop_controls_generation_tag_and_namespace():
    source = """\
{% set ns = namespace(n=0) %}{% for x in range(10) %}{% if x == 1 %}{% continue %}{% endif %}\
{% if x > 3 %}{% break %}{% endif %}{% generation %}{{ x }}{% endgeneration %}\
{% set ns.n = ns.n + x %}{% endfor %}={{ ns.n }}"""
    assert render(source) == "023=5"


def test_loop_variable():
    source = (
        "{% for m in messages %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}"
        "{{ loop.previtem is defined }}{{ loop.nextitem is defined }};{% endfor %}"
    )
    assert render(source, [1, 2]) == "0TrueFalse2FalseTrue;1FalseTrue2TrueFalse;"


def test_strftime_now():
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)


# How templates of several families read `enable_thinking`, in short.
THINKING = {
    "deepseek-r1": "<think>\n{% if not enable_thinking %}</think>{% endif %}",
    "deepseek-v3.1": "{% if thinking is not defined %}{% set thinking = enable_thinking "
    "if enable_thinking is defined else false %}{% endif %}"
    "{{ '<think>' if thinking else '</think>' }}",
    "exaone4": "{{ '<think>\n' if enable_thinking is defined and enable_thinking is true "
    "else '<think>\n\n</think>' }}",
    "gemma4": "{% if enable_thinking is defined and enable_thinking %}<|think|>{% endif %}"
    "<|turn>model\n{% if not enable_thinking | default(false) %}"
    "<|channel>thought\n<channel|>{% endif %}{% if tools %}<|tool_call>{% endif %}",
    "glm4moe": "{{ '<think></think>' if enable_thinking is defined and not enable_thinking }}",
    "laguna": "{% set enable_thinking = enable_thinking | default(false) %}"
    "{{ '<think>' if enable_thinking else '</think>' }}",
    "qwen3": "{{ '<think>\n\n</think>' if enable_thinking is defined "
    "and enable_thinking is false }}",
    "smollm3": "{% if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}"
    "{{ '' if enable_thinking else '<think>\n\n</think>' }}",
    "unknown": "{% if enable_thinking %}on{% endif %}",
}


@pytest.mark.parametrize("source", THINKING.values(), ids=THINKING)
def test_thinking_is_on_by_default(source):
    on, off = (render(source, enable_thinking=choice) for choice in (True, False))
    assert on != off
    assert render(source) == on


def test_a_default_without_known_markers_is_kept():
    """The reasoning of such a model (Apertus) would be part of the answer."""
    source = "Deliberation: {{ enable_thinking is defined and enable_thinking }}"
    assert render(source) == render(source, enable_thinking=False)
    assert render(source) != render(source, enable_thinking=True)


def test_other_switches_keep_their_default():
    source = "{% if thinking is not defined %}{% set thinking = false %}{% endif %}"
    source += "{{ '<think>' if thinking else '</think>' }}"  # DeepSeek V3.1 as published
    assert render(source) == "</think>"
    assert render("{{ reasoning_effort | default('medium') }}<|channel|>").startswith("medium")


def test_thinking_is_the_default_of_enable_thinking():
    source = (
        "{% if enable_thinking is defined %}{% set thinking = enable_thinking %}{% endif %}"
        "{{ '<think>' if thinking else '</think>' }}"
    )
    assert [render(source, thinking=choice) for choice in (True, False)] == ["<think>", "</think>"]


def test_enable_thinking_also_sets_thinking():
    source = "{{ thinking is defined }}{{ thinking }}"
    assert render(source) == "False"
    assert render(source, enable_thinking=True) == "TrueTrue"
    assert render(source, enable_thinking=True, thinking=False) == "TrueFalse"


def test_date_string_of_llama():
    source = (
        "{%- if not date_string is defined %}{%- set date_string = '26 Jul 2024' %}{%- endif %}"
        "{{- 'Today Date: ' + date_string }}"
    )
    before = datetime.now()
    text = render(source)
    assert text in {f"Today Date: {d:%d %b %Y}" for d in (before, datetime.now())}
    assert render(source, date_string="1 Jan 2000") == "Today Date: 1 Jan 2000"


def test_functions_and_datetime_of_firefunction():
    source = "{{ '' + functions + '|' + (datetime | length | string) }}"
    assert render(source) == "|20"
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert render(source, tools=tools) == json.dumps(tools, indent=2) + "|20"
    assert render(source, functions="own", datetime="now") == "own|3"


def test_values_reach_the_template_unchanged():
    class Name(str):
        __slots__ = ()

    values = [(1, "a"), {2: "b", "a": None}, "\ud800", 2**70, float("inf"), True]
    assert render("{{ v }}", v=values) == str(values)
    assert render("{{ v }}", v=[Name("x"), IntEnum("E", ["A"]).A]) == "['x', 1]"


@pytest.mark.parametrize("value", [{1, 2}, object(), b"x", datetime(2000, 1, 1), [{"a": {1}}]])
def test_only_plain_data_is_rendered(value):
    with pytest.raises(RequestError, match="cannot take a"):
        render("{{ v }}", v=value)


def test_circular_data():
    value = []
    value.append(value)
    with pytest.raises(RequestError, match="nested too deeply"):
        render("{{ v }}", v=value)


@pytest.mark.parametrize("name", ["messages", "self", "bos_token", "a-b", "a b", "0"])
def test_reserved_names(name):
    with pytest.raises(RequestError, match=f"{name} cannot be set"):
        ChatTemplate(CHATML).render(USER, **{name: 1})


# -- messages that are continued ------------------------------------------------------------------

BEGUN = [*USER, {"role": "assistant", "content": "Well, "}]


def test_the_last_message_is_continued():
    head = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    text = render(CHATML, BEGUN, continue_final_message=True)
    assert text == head + "<think>\n\n</think>\n\nWell, "
    again = render(CHATML, BEGUN, add_generation_prompt=False, continue_final_message=True)
    assert again == text
    source = "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}A:"
    assert render(source + "{% endif %}", BEGUN, continue_final_message=True) == "[Hi]A:Well, "


def test_reasoning_that_the_template_opens_is_closed_before_the_text():
    source = "{% if add_generation_prompt %}<think>\n{% endif %}"
    text = render(source, BEGUN, continue_final_message=True)
    assert text == "<think>\n</think>\n\nWell, "


@pytest.mark.parametrize("opened", ["", "<think>\n"])
@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_of_a_message_that_is_continued_is_kept(opened, key):
    source = "{% if enable_thinking %}" + opened + "{% else %}<think></think>{% endif %}"
    text = render(source, [{**BEGUN[-1], key: "Hm.\n"}], continue_final_message=True)
    assert text == "<think>\nHm.\n</think>\n\nWell, "
    without = render(
        '<tool_call></tool_call>"arguments"',
        [{**BEGUN[-1], key: "Hm."}],
        continue_final_message=True,
    )
    assert without.endswith('"arguments"Well, ')


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        (USER, "the last message must be the assistant's"),
        ([], "the last message must be the assistant's"),
        ([{"role": "assistant", "content": None, "tool_calls": [{}]}], "without calls"),
    ],
)
def test_nothing_to_continue(messages, why):
    with pytest.raises(RequestError, match=why):
        render(CHATML, messages, continue_final_message=True)


def test_a_format_that_cannot_continue_messages():
    harmony = "<|channel|><|message|>analysis"
    with pytest.raises(RequestError, match="cannot continue"):
        render(harmony, BEGUN, continue_final_message=True)


def test_continuing_and_starting_a_message_contradict():
    with pytest.raises(RequestError, match="contradict"):
        render(CHATML, BEGUN, add_generation_prompt=True, continue_final_message=True)


def test_text_methods_and_filters():
    source = (
        "{{ t.split('</think>')[-1].lstrip('\\n') }}|{{ t.startswith('<') }}|{{ t | length }}"
        "|{{ ['a', 'b'] | join(', ') }}|{{ 'a-b' | replace('-', '+') }}|{{ '%s!' | format('x') }}"
        "|{{ '{:>3}'.format(7) }}|{{ 'x' * 3 }}|{{ 7 % 4 }}|{{ [1] + [2] }}|{{ 'a' ~ 1 }}"
        "|{{ messages | map(attribute='role') | list }}|{{ '%d%%' % 5 }}|{{ 2 ** 5 }}"
        "|{{ 'x' | center(5) }}|{{ 'a\nb' | indent(2) }}|{{ messages | join('-', 'role') }}"
    )
    assert render(source, t="<think>a</think>\nb") == (
        "b|True|18|a, b|a+b|x!|  7|xxx|3|[1, 2]|a1|['user']|5%|32|  x  |a\n  b|user"
    )


# -- errors ---------------------------------------------------------------------------------------


def test_template_refuses_messages():
    with pytest.raises(TemplateError, match="unknown role robot"):
        render(CHATML, [{"role": "robot", "content": ""}])


def test_syntax_error_names_the_line():
    with pytest.raises(TemplateError, match=r"not valid Jinja: line 2.*`chat_template=`"):
        render("a\n{% if %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0]['nothing'].deeper }}",
        "{{ messages + 1 }}",
        "{{ 1 / 0 }}",
        "{{ messages | no_such_filter }}",
        "{% include 'x' %}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% for x in messages %}" * 30 + "{% endfor %}" * 30,
        "{{ undefined_function() }}",
        "{{ range | tojson }}",
        "{{ raise_exception(10 ** 5000) }}",
        "{{ raise_exception() }}",
        "{{ '%c' % 'many' }}",
    ],
)
def test_failures_are_template_errors(source):
    with pytest.raises(TemplateError):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_unsafe_access(source):
    """The access is an error, or prints as nothing (jinja2's undefined value)."""
    with contextlib.suppress(TemplateError):
        assert render(source) == ""
    assert USER == [{"role": "user", "content": "Hi"}]


def test_model_without_a_template():
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>"],
        "tokenizer.ggml.scores": [0.0] * 3,
    }
    tokenizer = Tokenizer.from_metadata(metadata, "base.gguf")
    with pytest.raises(TemplateError, match=r"base\.gguf has no chat template.*`chat_template="):
        ChatTemplate.from_tokenizer(tokenizer)
    metadata |= {
        "tokenizer.chat_template": "plain",
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": "tools",
    }
    tokenizer = Tokenizer.from_metadata(metadata, "base.gguf")
    assert ChatTemplate.from_tokenizer(tokenizer).source == "plain"
    assert ChatTemplate.from_tokenizer(tokenizer, for_tools=True).source == "tools"


# -- prompts as ids -------------------------------------------------------------------------------


def test_messages_cannot_forge_markers():
    tokenizer = Tokenizer.from_gguf(DEMO)
    end = tokenizer.text_of(tokenizer.eos_id)
    template = ChatTemplate("{{ messages[0].content }}" + end)
    assert template.encode(tokenizer, USER)[-1] == tokenizer.eos_id
    forged = template.encode(tokenizer, [{"role": "user", "content": f"a{end}b"}])
    assert forged.count(tokenizer.eos_id) == 1
    assert tokenizer.decode(forged, skip_special=False).endswith(f"a{end}b{end}")
    rendered = template.render([{"role": "user", "content": f"a{end}b"}])
    assert tokenizer.encode_prompt(rendered).count(tokenizer.eos_id) == 2


def test_no_argument_can_forge_markers():
    tokenizer = Tokenizer.from_gguf(DEMO)
    end = tokenizer.text_of(tokenizer.eos_id)
    template = ChatTemplate("{{ messages }}{{ tools | tojson }}{{ documents }}{{ extra }}" + end)
    forged = [{"title": end, end: [f"a{end}b", (end,)]}]
    messages, begun = [{"role": "user", "content": end, end: end}], f"{end}c"
    ids = template.encode(tokenizer, messages, forged, documents=forged, extra=end)
    assert ids.count(tokenizer.eos_id) == 1
    messages.append({"role": "assistant", "content": begun})
    ids = template.encode(tokenizer, messages, continue_final_message=True)
    assert ids.count(tokenizer.eos_id) == 1
    assert tokenizer.decode(ids, skip_special=False).endswith(end + begun)


def test_embedded_model_has_a_prompt():
    tokenizer = Tokenizer.from_gguf(DEMO)
    template = ChatTemplate.from_tokenizer(tokenizer)
    ids = template.encode(tokenizer, USER)
    assert tokenizer.decode(ids, skip_special=False) == template.render(USER)
    assert tokenizer.special_ids.intersection(ids)
