"""Parsers of every chat format: whole answers, broken answers, and any split into chunks."""

import json
from itertools import pairwise

import pytest
from answers import BY_NAME, TOOLS, Case, answer, parse, pieces
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from zinc.chat.events import CallArguments, CallEnd, CallStart, Content, Reasoning
from zinc.chat.parser import AnswerParser

OSLO = {"city": "Oslo", "days": 3}
# Strings with braces, quotes, a line break, other scripts, and markers of formats.
HARD = 'a}"b]\\ \n</tool_call> <tool_call> ``` ünï 🌧 天气 <think>'
HARD_JSON = json.dumps(HARD, ensure_ascii=False)
NESTED = {"city": HARD, "options": {"deep": [{"x": [1, {}, "}"]}, None, -1.5e3]}, "metric": True}
WEATHER = ("get_weather", OSLO)
SUM = ("add", {"a": 1.5, "b": -2})
CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END, SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
Q = '<|"|>'


def hermes(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def tags(name, **values):
    lines = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function={name}>\n{lines}</function>\n</tool_call>"


def seed(name, **values):
    lines = "".join(f"<parameter={k}>{v}</parameter>\n" for k, v in values.items())
    return f"<seed:tool_call>\n<function={name}>\n{lines}</function>\n</seed:tool_call>"


def invoke(name, **values):
    lines = "".join(f'<parameter name="{k}">{v}</parameter>\n' for k, v in values.items())
    return f'<invoke name="{name}">\n{lines}</invoke>\n'


def minimax(*calls):
    return f"<minimax:tool_call>\n{''.join(calls)}</minimax:tool_call>"


def hy3(*calls):
    """Return a block of calls; the names of all tags have a suffix."""

    def tag(name, text, end="\n"):
        return f"<{name}:opensource>{text}</{name}:opensource>{end}"

    def body(name, values):
        pairs = (tag("arg_key", k) + tag("arg_value", v) for k, v in values.items())
        return f"{name}<tool_sep:opensource>\n" + "".join(pairs)

    made = "".join(tag("tool_call", body(*call)) for call in calls)
    return tag("tool_calls", "\n" + made, end="")


def minicpm(name, **values):
    params = "".join(f'<param name="{k}">{v}</param>' for k, v in values.items())
    return f'<function name="{name}">{params}</function>'


def command(*calls):
    rows = [
        f'    {{"tool_call_id": "{i}", "tool_name": "{name}", "parameters": {json.dumps(values)}}}'
        for i, (name, values) in enumerate(calls)
    ]
    return "<|START_ACTION|>[\n" + ",\n".join(rows) + "\n]<|END_ACTION|>"


def command_r(*calls):
    rows = [{"tool_name": name, "parameters": values} for name, values in calls]
    return f"Action:\n```json\n{json.dumps(rows, indent=4)}```\n"


CASES = {
    "hermes text": Case("hermes", "Hello, wörld 🌍!\n\nBye.\n", "Hello, wörld 🌍!\n\nBye.\n"),
    "hermes think": Case(
        "hermes", "<think>\nHm.\n\nYes.\n</think>\n\nHello", "Hello", "Hm.\n\nYes."
    ),
    "hermes opened think": Case("hermes", "\nHm.\n</think>\nHello", "Hello", "Hm.", [], "<think>"),
    "hermes think is text later": Case("hermes", "a <think>b</think>", "a <think>b</think>"),
    "hermes call": Case("hermes", hermes("get_weather", json.dumps(OSLO)), calls=[WEATHER]),
    "hermes all": Case(
        "hermes",
        "<think>\nWell\n</think>\n\nLet me look.\n"
        + hermes("get_weather", json.dumps(OSLO))
        + "\n"
        + hermes("add", '{"a": 1.5, "b": -2}'),
        "Let me look.",
        "Well",
        [WEATHER, SUM],
    ),
    "hermes text after": Case(
        "hermes", "A " + hermes("now", "{}") + "\n\nB", "AB", calls=[("now", {})]
    ),
    "hermes nested": Case(
        "hermes", hermes("get_weather", json.dumps(NESTED)), calls=[("get_weather", NESTED)]
    ),
    "hermes raw unicode": Case(
        "hermes",
        hermes("get_weather", f'{{"city": {HARD_JSON}}}'),
        calls=[("get_weather", {"city": HARD})],
    ),
    "hermes raw line break": Case(
        "hermes",
        hermes("get_weather", '{"city": "a\nb\tc"}'),
        calls=[("get_weather", {"city": "a\nb\tc"})],
    ),
    "hermes order and other keys": Case(
        "hermes",
        '<tool_call>{"id": "x", "arguments": {"a": 1.5, "b": -2}, "name": "add", "k": [1]}'
        "</tool_call>",
        calls=[SUM],
    ),
    "hermes text arguments": Case(
        "hermes", hermes("add", json.dumps('{"a": 1.5, "b": -2}')), calls=[SUM]
    ),
    "hermes no arguments": Case(
        "hermes",
        '<tool_call>{"name": "now"}</tool_call>' + hermes("now", "null"),
        calls=[("now", {}), ("now", {})],
    ),
    "hermes list": Case(
        "hermes",
        '<tool_call>[{"name": "now", "arguments": {}}, {"name": "add", "arguments":'
        ' {"a": 1.5, "b": -2}}]</tool_call>',
        calls=[("now", {}), SUM],
    ),
    "hermes no closing tag": Case("hermes", hermes("now", "{}")[:-12], calls=[("now", {})]),
    "hermes unknown tool": Case("hermes", hermes("foo", "{}"), calls=[("foo", {})]),
    "qwen text": Case("qwen-tags", "x < y <function> <tool_", "x < y <function> <tool_"),
    "qwen call": Case(
        "qwen-tags",
        "Hm.\n</think>\n\nSure.\n\n" + tags("get_weather", city="Oslo", days=3),
        "Sure.",
        "Hm.",
        [WEATHER],
        "<think>",
    ),
    "qwen types": Case(
        "qwen-tags",
        tags("get_weather", city="007", days="7", metric="True", tags='["a"]', options='{"a": {}}'),
        calls=[
            (
                "get_weather",
                {"city": "007", "days": 7, "metric": True, "tags": ["a"], "options": {"a": {}}},
            )
        ],
    ),
    "qwen whole numbers": Case(
        "qwen-tags", tags("get_weather", days="3.0"), calls=[("get_weather", {"days": 3.0})]
    ),
    "qwen types that do not fit": Case(
        "qwen-tags",
        tags("get_weather", days="many", metric="2", tags="[1", options="NaN"),
        calls=[("get_weather", {"days": "many", "metric": "2", "tags": "[1", "options": "NaN"})],
    ),
    "qwen unknown parameter": Case(
        "qwen-tags",
        tags("now", a="1.5", b="text", c="[1, 2]", d="null"),
        calls=[("now", {"a": 1.5, "b": "text", "c": [1, 2], "d": None})],
    ),
    "qwen lines": Case(
        "qwen-tags",
        tags("get_weather", city="\n a\n\nb \n"),
        calls=[("get_weather", {"city": "\n a\n\nb \n"})],
    ),
    "qwen hard text": Case(
        "qwen-tags",
        tags("get_weather", city=HARD + "\n</parameter> is a tag"),
        calls=[("get_weather", {"city": HARD + "\n</parameter> is a tag"})],
    ),
    "qwen without outer tag": Case(
        "qwen-tags",
        "<function=add>\n<parameter=a>\n1.5\n</parameter>\n<parameter=b>-2</parameter>"
        "\n</function>\n</tool_call>",
        calls=[SUM],
    ),
    "qwen parallel": Case(
        "qwen-tags",
        tags("now") + "\n" + tags("add", a="1.5", b="-2"),
        calls=[("now", {}), SUM],
    ),
    "seed all": Case(
        "seed",
        "<seed:think>Hm.</seed:think>\nSure.\n" + seed("get_weather", city="Oslo", days=3),
        "Sure.",
        "Hm.",
        [WEATHER],
    ),
    "seed lines": Case(
        "seed",
        seed("get_weather", city="\n a\n\nb \n"),
        calls=[("get_weather", {"city": "\n a\n\nb \n"})],
    ),
    "seed hard text": Case(
        "seed",
        seed("get_weather", city=HARD + "</parameter> is a tag"),
        calls=[("get_weather", {"city": HARD + "</parameter> is a tag"})],
    ),
    "seed parallel": Case(
        "seed", seed("now") + "\n" + seed("add", a="1.5", b="-2"), calls=[("now", {}), SUM]
    ),
    "granite all": Case(
        "granite",
        "<think>Hm.</think>\nSure.\n"
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {json.dumps(OSLO)}}}, '
        '{"name": "now", "arguments": {}}]',
        "Sure.",
        "Hm.",
        [WEATHER, ("now", {})],
    ),
    "hy3 all": Case(
        "hy3",
        "Hm.</think:opensource>Sure.\n" + hy3(("get_weather", OSLO)),
        "Sure.",
        "Hm.",
        [WEATHER],
        "<think:opensource>",
    ),
    "hy3 parallel": Case(
        "hy3", hy3(("now", {}), ("add", {"a": 1.5, "b": -2})), calls=[("now", {}), SUM]
    ),
    "hy3 hard text": Case(
        "hy3",
        hy3(("get_weather", {"city": HARD + "</arg_value:opensource> is a tag"})),
        calls=[("get_weather", {"city": HARD + "</arg_value:opensource> is a tag"})],
    ),
    "command all": Case(
        "command",
        "<|START_THINKING|>Hm.<|END_THINKING|>" + command(WEATHER, ("now", {})),
        "",
        "Hm.",
        [WEATHER, ("now", {})],
    ),
    "command text": Case(
        "command",
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Sure.<|END_RESPONSE|>",
        "Sure.",
        "Hm.",
    ),
    "command hard text": Case(
        "command",
        command(("get_weather", {"city": HARD})),
        calls=[("get_weather", {"city": HARD})],
    ),
    "command-r all": Case(
        "command-r",
        "I look it up.\n" + command_r(WEATHER, SUM),
        "I look it up.",
        "",
        [WEATHER, SUM],
    ),
    "command-r one line": Case(
        "command-r",
        'Action: ```json [{"tool_name": "now", "parameters": {}}]\n```',
        calls=[("now", {})],
    ),
    "command-r hard text": Case(
        "command-r",
        command_r(("get_weather", {"city": HARD + "```"})),
        calls=[("get_weather", {"city": HARD + "```"})],
    ),
    "command-r text": Case("command-r", "Action: none is needed.", "Action: none is needed."),
    "minicpm all": Case(
        "minicpm",
        "<think>Hm.</think>\nSure.\n" + minicpm("get_weather", city="Oslo", days=3),
        "Sure.",
        "Hm.",
        [WEATHER],
    ),
    "minicpm parallel": Case(
        "minicpm", minicpm("now") + minicpm("add", a="1.5", b="-2"), calls=[("now", {}), SUM]
    ),
    "minicpm hard text": Case(
        "minicpm",
        minicpm("get_weather", city=f"<![CDATA[{HARD}\n</param> is a tag]]>"),
        calls=[("get_weather", {"city": HARD + "\n</param> is a tag"})],
    ),
    "lfm2 all": Case(
        "lfm2",
        "<think>Hm.</think>Sure.<|tool_call_start|>"
        '[get_weather(city="Oslo", days=3), now()]<|tool_call_end|>',
        "Sure.",
        "Hm.",
        [WEATHER, ("now", {})],
    ),
    "lfm2 json": Case(
        "lfm2",
        f'<|tool_call_start|>[{{"name": "get_weather", "arguments": {json.dumps(OSLO)}}}]'
        "<|tool_call_end|>",
        calls=[WEATHER],
    ),
    "lfm2 hard text": Case(
        "lfm2",
        f"<|tool_call_start|>[get_weather(city={HARD!r})]<|tool_call_end|>",
        calls=[("get_weather", {"city": HARD})],
    ),
    "granite one": Case(
        "granite", '<|tool_call|>{"name": "now", "arguments": {}}', calls=[("now", {})]
    ),
    "minimax all": Case(
        "minimax",
        "Hm.\n</think>\n\nSure.\n" + minimax(invoke("get_weather", city="Oslo", days=3)),
        "Sure.",
        "Hm.",
        [WEATHER],
        "<think>",
    ),
    "minimax parallel": Case(
        "minimax",
        minimax(invoke("now"), invoke("add", a="1.5", b="-2")),
        calls=[("now", {}), SUM],
    ),
    "minimax types": Case(
        "minimax",
        minimax(
            invoke("get_weather", city="007", metric="true", tags='["a"]', options='{"a": {}}')
        ),
        calls=[
            ("get_weather", {"city": "007", "metric": True, "tags": ["a"], "options": {"a": {}}})
        ],
    ),
    "minimax hard text": Case(
        "minimax",
        minimax(invoke("get_weather", city=HARD + "\n</parameter> is a tag")),
        calls=[("get_weather", {"city": HARD + "\n</parameter> is a tag"})],
    ),
    "qwen json": Case("qwen-tags", hermes("now", "{}"), calls=[("now", {})]),
    "glm all": Case(
        "glm",
        "\n<think>Hm.</think>\nSure.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n"
        "<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
        "</tool_call>\n<tool_call>now</tool_call>",
        "Sure.",
        "Hm.",
        [WEATHER, ("now", {})],
    ),
    "glm hard text": Case(
        "glm",
        f"<tool_call>get_weather<arg_key>city</arg_key><arg_value>\n{HARD}\n</arg_value>"
        "</tool_call>",
        calls=[("get_weather", {"city": f"\n{HARD}\n"})],
    ),
    "gemma3 fence": Case(
        "gemma3",
        'Sure:\n```tool_code\nprint(default_api.get_weather(city="Oslo", days=3))\n```\nDone.',
        "Sure:Done.",
        calls=[WEATHER],
    ),
    "gemma3 lines": Case(
        "gemma3",
        "```tool_code\nnow()\nadd(1.5, b=-2)\n```",
        calls=[("now", {}), SUM],
    ),
    "gemma3 list": Case(
        "gemma3", "[get_weather(city='Oslo', days=3), add(a=1.5, b=-2,)]", calls=[WEATHER, SUM]
    ),
    "gemma3 json": Case(
        "gemma3", '{"name": "add", "parameters": {"a": 1.5, "b": -2}}', calls=[SUM]
    ),
    "gemma3 literals": Case(
        "gemma3",
        "[get_weather(city='a\\'b\\x41\\u00e9\\n\\q', tags=('x', \"y\",), options={'k': None, 1: "
        "[True, False, 0x10, 1_000, .5]}, days = 3)]",
        calls=[
            (
                "get_weather",
                {
                    "city": "a'bAé\n\\q",
                    "tags": ["x", "y"],
                    "options": {"k": None, "1": [True, False, 16, 1000, 0.5]},
                    "days": 3,
                },
            )
        ],
    ),
    "gemma3 long string": Case(
        "gemma3",
        '[get_weather(city="""a "quoted"\n)] ``` b""", tags=[""])]',
        calls=[("get_weather", {"city": 'a "quoted"\n)] ``` b', "tags": [""]})],
    ),
    "gemma3 other code": Case(
        "gemma3",
        "```tool_code\nx = 1\n```\n```python\nprint(1)\n```",
        "```tool_code\nx = 1\n```\n```python\nprint(1)\n```",
    ),
    "gemma3 list of text": Case("gemma3", "[link](http://x) is", "[link](http://x) is"),
    "gemma3 json answer": Case("gemma3", '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}'),
    "gemma4 all": Case(
        "gemma4",
        "<|channel>thought\nHm.\nYes.\n<channel|>Sure.<|tool_call>call:get_weather{"
        f"city:{Q}Oslo{Q},days:3}}<tool_call|><|tool_call>call:now{{}}<tool_call|>",
        "Sure.",
        "Hm.\nYes.",
        [WEATHER, ("now", {})],
    ),
    "gemma4 nested": Case(
        "gemma4",
        f"<|tool_call>call:get_weather{{city:{Q}{HARD}{Q},metric:true,options:{{deep:[{{x:[1,{{}},"
        f"{Q}}}{Q}]}},null,-1.5e3],{Q}a b{Q}:{Q}{Q}}},tags:[]}}<tool_call|>",
        calls=[
            (
                "get_weather",
                {
                    "city": HARD,
                    "metric": True,
                    "options": {"deep": [{"x": [1, {}, "}"]}, None, -1.5e3], "a b": ""},
                    "tags": [],
                },
            )
        ],
    ),
    "gemma4 bare text": Case(
        "gemma4",
        '<|tool_call>call:get_weather{"city": Oslo, x: None}<tool_call|><|tool_response>',
        calls=[("get_weather", {"city": "Oslo", "x": None})],
    ),
    "gemma4 opened": Case(
        "gemma4", "Hm.<channel|>Hello", "Hello", "Hm.", [], "<|channel>thought\n"
    ),
    "gemma4 no thought": Case("gemma4", "<|channel>thought\n<channel|>Hello", "Hello"),
    "harmony all": Case(
        "harmony",
        "<|channel|>analysis<|message|>Hm.\nYes.<|end|><|start|>assistant<|channel|>commentary"
        "<|message|>I will look.<|end|><|start|>assistant<|channel|>commentary "
        f"to=functions.get_weather <|constrain|>json<|message|>{json.dumps(OSLO)}<|call|>",
        "I will look.",
        "Hm.\nYes.",
        [WEATHER],
    ),
    "harmony final": Case(
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
        "Hello 🌍<|return|>",
        "Hello 🌍",
        "Hm.",
    ),
    "harmony recipient first": Case(
        "harmony",
        ' to=functions.add<|channel|>commentary json<|message|>{"a": 1.5, "b": -2}<|call|>',
        calls=[SUM],
    ),
    "harmony recipient in a later message": Case(
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.now<|channel|>"
        "commentary <|constrain|>json<|message|>{}<|call|>",
        "",
        "Hm.",
        [("now", {})],
    ),
    "harmony nested": Case(
        "harmony",
        "<|channel|>commentary to=functions.get_weather<|message|>" + json.dumps(NESTED),
        calls=[("get_weather", NESTED)],
    ),
    "harmony opened": Case("harmony", "Hello", "Hello", opened="<|channel|>final<|message|>"),
    "harmony plain": Case("harmony", "Hello <|x|>", "Hello <|x|>"),
    "deepseek r1": Case(
        "deepseek",
        f"Hm.\n</think>\n\nSure.{CALLS}{CALL}function{SEP}get_weather\n```json\n"
        f"{json.dumps(OSLO)}\n```{CALL_END}\n{CALL}function{SEP}now\n```json\n{{}}\n```{CALL_END}"
        f"{CALLS_END}",
        "Sure.",
        "Hm.",
        [WEATHER, ("now", {})],
        "<think>",
    ),
    "deepseek v3.1": Case(
        "deepseek-v3.1",
        f"Sure.{CALLS}{CALL}get_weather{SEP}{json.dumps(NESTED)}{CALL_END}{CALL}add{SEP}"
        f'{{"a": 1.5, "b": -2}}{CALL_END}{CALLS_END}',
        "Sure.",
        calls=[("get_weather", NESTED), SUM],
    ),
    "deepseek no block": Case("deepseek", f"{CALL}now{SEP}{{}}{CALL_END}", calls=[("now", {})]),
    "llama json": Case("llama", '{"name": "add", "parameters": {"a": 1.5, "b": -2}}', calls=[SUM]),
    "llama several": Case(
        "llama",
        '{"type": "function", "name": "now", "parameters": {}}; '
        '{"name": "add", "parameters": {"a": 1.5, "b": -2}}',
        calls=[("now", {}), SUM],
    ),
    "llama tag": Case(
        "llama",
        '<|python_tag|>{"name": "get_weather", "parameters": ' + json.dumps(NESTED) + "}",
        calls=[("get_weather", NESTED)],
    ),
    "llama built-in": Case(
        "llama", '<|python_tag|>get_weather.call(city="Oslo", days=3)', calls=[WEATHER]
    ),
    "llama function tag": Case(
        "llama",
        'Sure. <function=add>{"a": 1.5, "b": -2}</function>',
        "Sure.",
        calls=[SUM],
    ),
    "llama python list": Case("llama", "[add(a=1.5, b=-2)]", calls=[SUM]),
    "llama code without a tool": Case("llama", "<|python_tag|>print(1)", "<|python_tag|>print(1)"),
    "llama json answer": Case(
        "llama", '{"name": "x", "parameters": {}}', '{"name": "x", "parameters": {}}'
    ),
    "llama json later": Case(
        "llama", 'So: {"name": "now", "parameters": {}}', 'So: {"name": "now", "parameters": {}}'
    ),
    "mistral list": Case(
        "mistral",
        'Sure. [TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}, '
        '"id": "abcdefghi"}, {"name": "now", "arguments": {}}]',
        "Sure.",
        calls=[WEATHER, ("now", {})],
    ),
    "mistral names": Case(
        "mistral",
        '[THINK]Hm.[/THINK]Sure.[TOOL_CALLS]add[ARGS]{"a": 1.5, "b": -2}'
        f"[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{json.dumps(NESTED)}[TOOL_CALLS]now{{}}",
        "Sure.",
        "Hm.",
        [SUM, ("get_weather", NESTED), ("now", {})],
    ),
    "thinking only": Case("thinking-only", "<think>Hm.</think>Hello", "Hello", "Hm."),
    "plain": Case("plain", "<think>Hm.</think>" + hermes("now", "{}"), None),
}
CASES["plain"].content = CASES["plain"].text


def test_every_format_with_calls_has_a_case():
    reads = {format.name for format in BY_NAME.values() if format.has_calls}
    assert reads == {case.format for case in CASES.values() if case.calls}


def check(case, result):
    assert result.content == case.content
    assert result.reasoning == case.reasoning
    assert [call.name for call in result.calls] == [name for name, _ in case.calls]
    for call, (_, arguments) in zip(result.calls, case.calls, strict=True):
        assert json.loads(call.arguments) == arguments
        assert call.complete


@pytest.mark.parametrize("name", CASES)
def test_whole_answers(name):
    case = CASES[name]
    check(case, answer(case.format, [case.text], opened=case.opened))


@pytest.mark.parametrize("name", CASES)
def test_whole_answers_with_control_tokens(name):
    case = CASES[name]
    controls = set(BY_NAME[case.format].markers)
    if "<think>" in str(case.calls) + str(case.content):
        controls -= {
            "<tool_call>",
            "</tool_call>",
            "<think>",
        }  # markers within the text of this case
    chunks = pieces(case.text, controls)
    check(case, answer(case.format, chunks, opened=case.opened, controls=controls))


@pytest.mark.parametrize("name", CASES)
def test_answers_character_by_character(name):
    case = CASES[name]
    whole = parse(case.format, [case.text], opened=case.opened)
    assert parse(case.format, case.text, opened=case.opened) == whole


@given(st.data())
@settings(max_examples=examples(300), deadline=None)
def test_any_split(data):
    case = CASES[data.draw(st.sampled_from(sorted(CASES)))]
    end = data.draw(st.integers(0, len(case.text)))  # also truncate the text anywhere
    text = case.text[:end]
    cuts = sorted(data.draw(st.sets(st.integers(0, end), max_size=8)) | {0, end})
    chunks = [text[a:b] for a, b in pairwise(cuts)]
    assert parse(case.format, chunks, opened=case.opened) == parse(
        case.format, [text], opened=case.opened
    )


# -- streaming ------------------------------------------------------------------------------------


def test_events_in_order():
    text = "<think>a</think>b" + hermes("add", '{"a": 1}') + hermes("now", "{}")
    first = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert parse("hermes", [text]) == [
        Reasoning("a"),
        Content("b"),
        CallStart(0, "id0", "add"),
        CallArguments(0, '{"a": 1}'),
        CallEnd(0, True, first),
        CallStart(1, "id1", "now"),
        CallArguments(1, "{}"),
        CallEnd(1, True, hermes("now", "{}")),
    ]


@pytest.mark.parametrize(
    ("format", "before", "rest"),
    [
        ("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "Os', 'lo"}}'),
        ("qwen-tags", "<tool_call><function=get_weather><parameter=city>Os", "lo</parameter>"),
        ("glm", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Os", "lo</arg_value>"),
        ("seed", "<seed:tool_call><function=get_weather><parameter=city>Os", "lo</parameter>"),
        (
            "minimax",
            '<minimax:tool_call><invoke name="get_weather"><parameter name="city">Os',
            "lo</parameter>",
        ),
        ("minicpm", '<function name="get_weather"><param name="city">Os', "lo</param>"),
        ("lfm2", "<|tool_call_start|>[get_weather(city='Os", "lo')]"),
        (
            "hy3",
            hy3(("get_weather", {"city": "Os"})).split("</arg_value")[0],
            "lo</arg_value:opensource>",
        ),
        (
            "command",
            '<|START_ACTION|>[{"tool_name": "get_weather", "parameters": {"city": "Os',
            'lo"}}]',
        ),
        (
            "command-r",
            'Action: ```json\n[{"tool_name": "get_weather", "parameters": {"city": "Os',
            'lo"}}]```',
        ),
        ("gemma3", "[get_weather(city='Os", "lo')]"),
        ("gemma4", f"<|tool_call>call:get_weather{{city:{Q}Os", f"lo{Q}}}"),
        ("harmony", '<|channel|>commentary to=functions.get_weather<|message|>{"city": "Os', "lo"),
        ("deepseek", f'{CALLS}{CALL}get_weather{SEP}{{"city": "Os', 'lo"}'),
        ("granite", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Os', 'lo"}}]'),
        ("llama", '{"name": "get_weather", "parameters": {"city": "Os', 'lo"}}'),
        ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Os', 'lo"}'),
    ],
)
def test_arguments_arrive_while_they_are_written(format, before, rest):
    events = parse(format, [before])
    assert isinstance(events[0], CallStart)
    assert events[0].name == "get_weather"
    assert events[1].text.replace(" ", "") == '{"city":"Os'
    assert not events[2].complete
    assert "lo" in answer(format, [before, rest]).calls[0].arguments


def test_text_is_passed_on_unless_it_may_be_a_marker():
    assert parse("hermes", ["Hi <too"])[0] == Content("Hi <too")
    parser = AnswerParser(BY_NAME["hermes"], TOOLS)
    assert parser.push("Hi <too") == [Content("Hi")]
    assert parser.push("k>") == [Content(" <took>")]
    assert parser.push("\n\n") == []
    assert parser.push("x") == [Content("\n\nx")]


# -- broken answers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("hermes", "<tool_call>"),
        ("hermes", "Use the <tool_call> tag, then </tool_call>."),
        ("hermes", '<tool_call>{"name": "get_we'),
        ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "now", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "now", "arguments": "text"}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": {"a": 01}, "name": "add"}</tool_call>'),
        ("hermes", '<tool_call>{"tool": "now"}</tool_call>'),
        ("hermes", "<tool_call>{}</tool_call>"),
        ("hermes", '<tool_call>{"name": "a\\nb"}</tool_call>'),
        ("qwen-tags", "<tool_call>\n<function=\n</tool_call>"),
        ("qwen-tags", "<function=unknown><parameter=a>1</parameter></function>"),
        ("seed", "<seed:tool_call>\n<function=\n</seed:tool_call>"),
        ("granite", "<|tool_call|>get_weather"),
        ("granite", "<|tool_call|>[]"),
        ("minimax", "<minimax:tool_call>"),
        ("minimax", "<minimax:tool_call>\n</minimax:tool_call>"),
        ("minimax", '<minimax:tool_call><invoke name="now'),
        ("hy3", "<tool_calls:opensource>"),
        ("hy3", hy3(("unknown", {}))),
        ("command", "<|START_ACTION|>[]"),
        ("command-r", "Action:"),
        ("command-r", "Action: ```json\n[]```"),
        ("command-r", "Action: ```python\nnow()```"),
        ("command-r", command_r(("directly-answer", {})).strip()),
        ("lfm2", "<|tool_call_start|>[]"),
        ("lfm2", "<|tool_call_start|>[unknown()]<|tool_call_end|>"),
        ("minicpm", '<function name="unknown"></function>'),
        ("minicpm", '<function name="now'),
        ("command", '<|START_ACTION|>[{"tool_call_id": "0"'),
        ("glm", "<tool_call>no such tool</tool_call>"),
        ("glm", "<tool_call>now\n<arg_key"),
        ("gemma3", "```tool_code\nimport os\n```"),
        ("gemma3", "[now"),
        ("gemma3", "[other(a=1)]"),
        ("gemma4", "<|tool_call>now{}<tool_call|>"),
        ("gemma4", "<|channel>other\nx<channel|>"),
        ("harmony", "<|channel|>analysis"),
        ("harmony", "<|channel|>other<|message|>x"),
        ("harmony", "<|start|>user<|message|>x"),
        ("harmony", "<|channel|>commentary to=functions.now<|message|>no JSON"),
        ("deepseek", f"{CALLS}{CALLS_END}"),
        ("deepseek", f"{CALLS}{CALL}function{SEP}now\nno fence{CALL_END}{CALLS_END}"),
        ("llama", '{"name": "now", "parameters": [1]}'),
        ("llama", "{"),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral", "[TOOL_CALLS][]"),
        ("mistral", "[TOOL_CALLS]now and then"),
    ],
)
def test_text_that_looks_like_a_call_is_text(format, text):
    for whole in (text, f"a {text} b", f" {text}\n"):
        assert answer(format, [whole]) == answer("plain", [whole])
        assert answer(format, [whole]).content == whole


def test_text_is_not_held_back_forever():
    parser = AnswerParser(BY_NAME["hermes"], TOOLS)
    text = '<tool_call>{"id": "' + "x" * 10_000
    assert parser.push(text) == [Content(text)]
    assert parser.push("y") == [Content("y")]


def test_a_call_after_text_that_looks_like_one():
    text = "The <tool_call> tag:\n" + hermes("now", "{}")
    result = answer("hermes", [text])
    assert result.content == "The <tool_call> tag:"
    assert result.calls[0].name == "now"


def test_a_call_that_breaks_off_is_incomplete_and_the_rest_is_text():
    text = '<tool_call>{"name": "add", "arguments": {"a": 1, b: 2}}</tool_call> Sorry.'
    result = answer("hermes", [text])
    (call,) = result.calls
    assert not call.complete
    assert call.arguments == '{"a": 1, '
    assert call.source + result.content == text


def test_a_call_that_is_cut_off_is_incomplete():
    text = '<tool_call>{"name": "add", "arguments": {"a": 1'
    (call,) = answer("hermes", [text]).calls
    assert (call.arguments, call.complete, call.source) == ('{"a": 1', False, text)


def test_a_call_with_all_arguments_is_complete():
    (call,) = answer("hermes", ['<tool_call>{"name": "add", "arguments": {"a": 1}']).calls
    assert call.complete


def test_a_broken_call_does_not_hide_the_next_one():
    text = '<tool_call>{"name": "add", "arguments": {"a": ' + hermes("now", "{}")
    result = answer("hermes", [text])
    assert [(call.name, call.complete) for call in result.calls] == [("add", False), ("now", True)]


def test_reasoning_that_never_ends():
    assert answer("hermes", ["<think>\nHm. <tool_call>\n"]).reasoning == "Hm. <tool_call>\n"


def test_without_tools_calls_are_text():
    for name, case in CASES.items():
        if case.calls and case.format != "harmony":
            result = answer(case.format, [case.text], tools=None, opened=case.opened)
            assert result.calls == [], name
            assert result.reasoning == case.reasoning
            body = case.text
            ends = ("</think>", "</seed:think>", "</think:opensource>", "[/THINK]", "<channel|>")
            for end in (*ends, "<|END_THINKING|>"):
                body = body.split(end)[-1]
            body = body.removesuffix("<|tool_response>")
            assert result.content.strip() == body.strip()


def test_code_as_a_call_of_an_interpreter():
    tools = [{"name": "python", "input_schema": {"properties": {"source": {"type": "string"}}}}]
    result = answer("llama", ['<|python_tag|>x = {"a": 1}\nprint(x)'], tools=tools)
    assert json.loads(result.calls[0].arguments) == {"source": 'x = {"a": 1}\nprint(x)'}


def test_mistral_ids():
    text = "[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}"
    assert answer("mistral", [text]).calls[0].id == "abcdefghi"
    made = BY_NAME["mistral"].new_id()
    assert len(made) == 9
    assert made.isalnum()
    assert BY_NAME["hermes"].new_id() != BY_NAME["hermes"].new_id()


# -- control tokens -------------------------------------------------------------------------------


def test_a_marker_spelled_out_is_text_where_it_is_a_control_token():
    controls = {"<|tool_call>", "<tool_call|>", Q}
    spelled = "<|tool_call>call:now{}<tool_call|>"
    assert answer("gemma4", [spelled], controls=controls).content == spelled
    half = ["<|tool", "<|tool_call>", "call:now{}", "<tool_call|>"]
    result = answer("gemma4", half, controls=controls - {"<tool_call|>"})
    assert (result.content, result.calls[0].source) == ("<|tool", "".join(half[1:]))
    marked = ["<|tool_call>", "call:now{}", "<tool_call|>"]
    assert answer("gemma4", marked, controls=controls).calls[0].name == "now"


def test_a_control_token_in_a_string_ends_the_call():
    controls = set(BY_NAME["harmony"].markers)
    chunks = ["<|channel|>", "commentary to=functions.add", "<|message|>", '{"a": "', "<|end|>"]
    chunks += ["<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "Sorry."]
    result = answer("harmony", chunks, controls=controls)
    assert not result.calls[0].complete
    assert result.content == "Sorry."


def test_a_control_token_in_a_value_between_tags_is_text():
    controls = {"<tool_call>", "</tool_call>", "<think>"}
    chunks = [*pieces(tags("get_weather", city="x"), controls), "y"]
    before, after = chunks[1].split("x")
    chunks[1:2] = [before + "x ", "<think>", " z" + after]
    result = answer("qwen-tags", chunks, controls=controls)
    assert json.loads(result.calls[0].arguments) == {"city": "x <think> z"}
    assert result.content == "y"
