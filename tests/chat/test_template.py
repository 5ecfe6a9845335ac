"""Chat templates: what Hugging Face gives them, what they may not do, and prompts as ids."""

import contextlib
import json
from datetime import datetime
from pathlib import Path

import pytest

import zinc
from zinc.chat import ChatTemplate
from zinc.core.errors import TemplateError
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


# -- what templates see ---------------------------------------------------------------------------


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
    with pytest.raises(TemplateError, match=r"not valid Jinja: line 2"):
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
        "{{ x | tojson }}",
    ],
)
def test_failures_are_template_errors(source):
    with pytest.raises(TemplateError):
        render(source, x={1, 2})


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
    """It is an error or, when only printed, nothing: jinja2's undefined value."""
    with contextlib.suppress(TemplateError):
        assert render(source) == ""
    assert USER == [{"role": "user", "content": "Hi"}]


DOUBLING = "{% set ns = namespace(s='ab', l=[1]) %}{% for i in range(100) %}"
EXPENSIVE = {
    "string times": "{{ 'a' * 10000000000 }}",
    "list times": "{{ [1] * 10000000000 }}",
    "power": "{{ 10 ** 10000000 }}",
    "squares": "{% set ns = namespace(n=3) %}{% for i in range(60) %}"
    "{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "concatenation": DOUBLING + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "addition": DOUBLING + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "lists": DOUBLING + "{% set ns.l = ns.l + ns.l %}{% endfor %}",
    "capture": DOUBLING
    + "{% set c %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = c %}{% endfor %}",
    "join": DOUBLING + "{% set ns.s = [ns.s, ns.s] | join %}{% endfor %}",
    "join method": DOUBLING + "{% set ns.s = ''.join([ns.s, ns.s]) %}{% endfor %}",
    "replace": DOUBLING + "{% set ns.s = ns.s | replace('a', ns.s) %}{% endfor %}",
    "replace method": DOUBLING + "{% set ns.s = ns.s.replace('a', ns.s) %}{% endfor %}",
    "range": "{% for x in range(1000000000) %}{% endfor %}",
    "width filter": "{{ 'a' | center(10000000000) }}",
    "width method": "{{ 'a'.ljust(10000000000) }}",
    "width of format": "{{ '{:>10000000000}'.format(1) }}",
    "width of percent": "{{ '%10000000000d' % 1 }}",
    "width of a filter": "{{ '%10000000000d' | format(1) }}",
    "copies": "{% set ns = namespace(l=[]) %}{% set s = 'a' * 60000000 %}"
    "{% for i in range(100) %}{% set ns.l = ns.l + [s | upper, s.lower(), s[1:]] %}{% endfor %}",
    "join of a generator": DOUBLING
    + "{% set ns.s = ''.join([ns.s, ns.s] | map('string')) %}{% endfor %}",
    "batch": "{{ [1] | batch(10000000000, 'x') | list }}",
    "indent": "{{ [1] | tojson(indent=10000000000) }}",
    "time": "{{ strftime_now('%1000000000Y') }}",
}


@pytest.mark.parametrize("source", EXPENSIVE.values(), ids=EXPENSIVE)
def test_expensive_templates_are_stopped(source):
    with pytest.raises(TemplateError, match="was stopped"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
)
def test_endless_templates_meet_a_deadline(source, monkeypatch):
    monkeypatch.setattr("zinc.chat.sandbox.Budget.__init__.__defaults__", (0.2,))
    with pytest.raises(TemplateError, match="was stopped"):
        render(source)


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


def test_embedded_model_has_a_prompt():
    tokenizer = Tokenizer.from_gguf(DEMO)
    template = ChatTemplate.from_tokenizer(tokenizer)
    ids = template.encode(tokenizer, USER)
    assert tokenizer.decode(ids, skip_special=False) == template.render(USER)
    assert tokenizer.special_ids.intersection(ids)
