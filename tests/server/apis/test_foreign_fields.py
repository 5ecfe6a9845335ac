"""Foreign fields are translated, refused or ignored; unknown fields are refused."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from serving import LOAD, WEATHER, Running, running

from zinc.server.apis.shared.foreign_fields import table as foreign_table
from zinc.server.apis.shared.foreign_fields.table import TABLE
from zinc.server.endpoints import ENDPOINTS
from zinc.server.http.fields import own_names

HELLO = [{"role": "user", "content": "Hello"}]
SUM = [{"role": "user", "content": "Tom has 3 apples and buys 4 more. How many apples has he?"}]
PAGE = Path(__file__).parents[3] / "docs" / "server.md"


def chat(server: Running, **fields: Any) -> Any:
    base = {"messages": HELLO, "temperature": 0, "max_tokens": 40}
    found = server.post("/v1/chat/completions", {**base, **fields})
    assert found.status == 200, found.body
    return found.json


def text(found: Any) -> Any:
    return found["choices"][0]["message"]["content"]


def reasoning(found: Any) -> Any:
    return found["choices"][0]["message"].get("reasoning_content")


def refused(server: Running, fields: Any, path: str = "/v1/chat/completions") -> Any:
    base: dict[str, Any] = {"messages": HELLO, "max_tokens": 2}
    if path == "/v1/responses":
        base = {"input": "Hello"}
    found = server.post(path, {**base, **fields})
    assert found.status == 400, found.body
    return found.json["error"]


# -- limits and sampling ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["n_predict", "max_new_tokens", "max_output_tokens"])
def test_other_names_of_the_token_limit(server: Running, name: str):
    found = server.post("/v1/chat/completions", {"messages": HELLO, name: 3}).json
    assert found["usage"]["completion_tokens"] == 3
    assert found["choices"][0]["finish_reason"] == "length"
    found = server.post("/v1/completions", {"prompt": "Once", name: 3}).json
    assert found["usage"]["completion_tokens"] == 3
    if name != "max_output_tokens":
        found = server.post("/v1/responses", {"input": "Hello", name: 3}).json
        assert found["usage"]["output_tokens"] == 3


def test_a_limit_of_minus_one_means_no_limit(server: Running):
    whole = server.post("/v1/responses", {"input": "Hello", "temperature": 0})
    found = server.post("/v1/responses", {"input": "Hello", "temperature": 0, "n_predict": -1})
    assert found.json["usage"]["output_tokens"] == whole.json["usage"]["output_tokens"]


def test_repetition_penalty_applies_to_all_tokens(server: Running):
    fields = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
    own = {"repeat_penalty": 1.8, "repeat_last_n": -1}
    plain, penalised = chat(server, **fields), chat(server, **fields, **own)
    assert text(plain) != text(penalised)
    assert text(chat(server, **fields, repetition_penalty=1.8)) == text(penalised)
    near = {"repeat_last_n": 4}
    assert text(chat(server, **fields, repetition_penalty=1.8, **near)) == text(
        chat(server, **fields, repeat_penalty=1.8, **near)
    )


def test_options_of_ollama(server: Running):
    options = {"num_predict": 5, "temperature": 1.4, "seed": 7, "top_k": 30, "num_ctx": 4096}
    found = server.post("/v1/chat/completions", {"messages": HELLO, "options": options}).json
    own = {"max_tokens": 5, "temperature": 1.4, "seed": 7, "top_k": 30}
    assert text(found) == text(chat(server, **own))
    assert found["usage"]["completion_tokens"] == 5
    word = text(chat(server)).split()[2]
    assert word not in text(chat(server, options={"stop": [word]}))


def test_do_sample_false_is_greedy(server: Running):
    greedy = text(chat(server))
    assert text(chat(server, temperature=1.7, seed=1, do_sample=False)) == greedy
    drawn = text(chat(server, temperature=1.7, seed=1))
    assert text(chat(server, temperature=1.7, seed=1, do_sample=True)) == drawn != greedy


def test_openrouters_usage_field_in_a_stream(server: Running):
    body = {"messages": HELLO, "max_tokens": 3, "usage": {"include": True}}
    events = server.post("/v1/chat/completions", {**body, "stream": True}).events
    assert events[-2]["usage"]["completion_tokens"] == 3
    assert server.post("/v1/chat/completions", body).json["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("name", ["extra_key", "prompt_cache_isolation_key"])
def test_other_names_of_the_cache_salt(server: Running, name: str):
    """Prompts with a different salt do not share the prefix cache."""
    story = {"messages": [{"role": "user", "content": f"{name} and a fox in a forest. " * 30}]}

    def cached(**fields: Any) -> int:
        usage = chat(server, **story, max_tokens=1, **fields)["usage"]
        n: int = usage["prompt_tokens_details"]["cached_tokens"]
        return n

    assert cached(**{name: "a"}) < 64
    assert cached(**{name: "a"}) > 64
    assert cached(cache_salt="a") > 64
    assert cached(**{name: "b"}) < 64


def test_seeds_and_stop_strings_under_other_names(server: Running):
    by_seed = chat(server, temperature=1.4, seed=3)
    assert text(chat(server, temperature=1.4, random_seed=3)) == text(by_seed)
    whole = text(chat(server))
    word = whole.split()[2]
    assert text(chat(server, stop_sequences=[word])) == whole[: whole.index(word)]
    found = server.post(
        "/v1/messages",
        {"messages": HELLO, "max_tokens": 40, "temperature": 0, "stop": [word]},
    ).json
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", word)


# -- reasoning -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning": {"enabled": True}},
        {"reasoning": {"effort": "high"}},
        {"reasoning": {"max_tokens": 500}},
        {"thinking": {"type": "enabled"}},
        {"thinking": {"type": "enabled", "budget_tokens": 500}},
        {"think": True},
        {"think": "high"},
    ],
)
def test_fields_that_turn_reasoning_on(server: Running, fields: Any):
    own = chat(server, messages=SUM, max_tokens=150, enable_thinking=True)
    found = chat(server, messages=SUM, max_tokens=150, **fields)
    assert reasoning(found)
    assert reasoning(found) == reasoning(own)
    assert text(found) == text(own)


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning": {"enabled": False}},
        {"reasoning": {"effort": "none"}},
        {"thinking": {"type": "disabled"}},
        {"think": False},
    ],
)
def test_fields_that_turn_reasoning_off(server: Running, fields: Any):
    assert not reasoning(chat(server, messages=SUM, max_tokens=150, **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking_budget_tokens": 4},
        {"reasoning_budget_tokens": 4},
        {"thinking_token_budget": 4},
        {"reasoning": {"max_tokens": 4}},
        {"thinking": {"type": "enabled", "budget_tokens": 4}},
    ],
)
def test_fields_that_limit_reasoning(server: Running, fields: Any):
    more = {} if "thinking" in fields or "reasoning" in fields else {"enable_thinking": True}
    own = chat(server, messages=SUM, max_tokens=150, enable_thinking=True, thinking_budget=4)
    found = chat(server, messages=SUM, max_tokens=150, **fields, **more)
    assert reasoning(found) == reasoning(own)
    free = chat(server, messages=SUM, max_tokens=150, enable_thinking=True)
    assert len(reasoning(found)) < len(reasoning(free))


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning": {"effort": "high", "exclude": True}},
        {"enable_thinking": True, "include_reasoning": False},
        {"enable_thinking": True, "reasoning_format": "hidden"},
    ],
)
def test_fields_that_hide_reasoning(server: Running, fields: Any):
    asked = {"messages": SUM, "max_tokens": 150}
    found = chat(server, **asked, **fields)
    assert reasoning(found) is None
    assert text(found) == text(chat(server, **asked, enable_thinking=True))
    assert found["usage"]["completion_tokens_details"]["reasoning_tokens"] > 3
    body = {"temperature": 0, **asked, **fields, "stream": True}
    events = server.post("/v1/chat/completions", body).events
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert not any("reasoning_content" in delta for delta in deltas)
    assert "".join(delta.get("content") or "" for delta in deltas) == text(found)


def test_openrouters_reasoning_in_a_response(server: Running):
    base = {"input": SUM[0]["content"], "temperature": 0, "max_output_tokens": 150}
    for given in ({"enabled": True}, {"max_tokens": 300, "enabled": True}):
        found = server.post("/v1/responses", {**base, "reasoning": given}).json
        assert [item["type"] for item in found["output"]] == ["reasoning", "message"]


# -- form of the answer ----------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA}},
        {"format": SCHEMA},
    ],
)
def test_json_follows_a_schema(server: Running, fields: Any):
    value = json.loads(text(chat(server, **fields)))
    assert set(value) == {"n"}
    assert 0 <= value["n"] <= 99


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"guided_choice": ["yes", 'no "way"']}, {"yes", 'no "way"'}),
        ({"structured_outputs": {"choice": ["ja", "nein"]}}, {"ja", "nein"}),
        ({"guided_regex": "a/b|c/d"}, {"a/b", "c/d"}),
        ({"structured_outputs": {"regex": "one|two"}}, {"one", "two"}),
        ({"regex": "x[0-2]y"}, {"x0y", "x1y", "x2y"}),
        ({"guided_grammar": 'root ::= "up" | "down"'}, {"up", "down"}),
        ({"structured_outputs": {"grammar": 'start: "hot" | "cold"'}}, {"hot", "cold"}),
        ({"ebnf": 'root ::= "in" | "out"'}, {"in", "out"}),
    ],
)
def test_other_output_formats(server: Running, fields: Any, texts: set[str]):
    assert text(chat(server, **fields)) in texts
    prompt = {"prompt": "Once", "max_tokens": 40, "temperature": 0}
    found = server.post("/v1/completions", {**prompt, **fields}).json
    assert found["choices"][0]["text"] in texts


@pytest.mark.parametrize(
    "fields", [{"format": "json"}, {"structured_outputs": {"json_object": True}}]
)
def test_fields_that_ask_for_any_json_object(server: Running, fields: Any):
    found = chat(server, max_tokens=300, **fields)
    assert text(found).startswith("{")
    if found["choices"][0]["finish_reason"] == "stop":
        assert isinstance(json.loads(text(found)), dict)


def test_anthropics_older_name_of_the_output_format(server: Running):
    fields = {
        "messages": HELLO, "max_tokens": 60, "output_config": {"effort": "low"},
        "output_format": {"type": "json_schema", "schema": SCHEMA},
    }  # fmt: skip
    found = server.post("/v1/messages", fields).json
    assert set(json.loads(found["content"][0]["text"])) == {"n"}


def test_documents_reach_the_template(server: Running):
    documents = [{"title": "x", "text": "y"}]
    kwargs = {"chat_template_kwargs": {"documents": documents}}
    rendered = [
        server.post("/apply-template", {"messages": HELLO, **fields}).json["prompt"]
        for fields in ({"documents": documents}, kwargs)
    ]
    assert rendered[0] == rendered[1]


# -- refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"repetition_penalty": "high"}, "repetition_penalty"),
        ({"repetition_penalty": -1}, "repetition_penalty"),
        ({"n_predict": "many"}, "n_predict"),
        ({"n_predict": 5, "max_tokens": 6}, "n_predict"),
        ({"options": {"temperature": -1}}, "options.temperature"),
        ({"options": {"top_k": "few"}}, "options.top_k"),
        ({"options": [1]}, "options"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"enabled": 1}}, "reasoning.enabled"),
        ({"reasoning": True}, "reasoning"),
        ({"reasoning": {"enabled": True}, "enable_thinking": False}, "reasoning.enabled"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": -3}}, "thinking.budget_tokens"),
        ({"think": "often"}, "think"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [""]}, "guided_choice"),
        ({"guided_json": 5}, "guided_json"),
        ({"structured_outputs": {"json": {"type": "string", "pattern": "("}}},
         "structured_outputs.json"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"jason": {}}}, "structured_outputs.jason"),
        ({"guided_json": {"type": "string"}, "guided_regex": "x"}, "guided_regex"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"best_of": 4}, "best_of"),
        ({"min_tokens": 5}, "min_tokens"),
        ({"stop_token_ids": [1]}, "stop_token_ids"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"top_a": 0.2}, "top_a"),
        ({"image_data": [{"data": "x", "id": 1}]}, "image_data"),
        ({"n_indent": 4}, "n_indent"),
        ({"speculative.n_max": -1}, "speculative.n_max"),
        ({"speculative.n_max": "all"}, "speculative.n_max"),
        ({"speculative.n_max": 0, "speculate": True}, "speculative.n_max"),
        ({"verbosity": "shouting"}, "verbosity"),
    ],
)  # fmt: skip
def test_errors_name_the_foreign_field(server: Running, fields: Any, param: str):
    if param == "n_predict" and fields["n_predict"] == "many":
        found = server.post("/v1/chat/completions", {"messages": HELLO, **fields}).json["error"]
    else:
        found = refused(server, fields)
    assert found["param"] == param
    assert found["message"]


PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def test_a_thinking_budget_is_accepted_without_reasoning():
    """Clients send one to every model; the log says once that it has no effect."""
    logger, records = logging.getLogger("zinc.server"), list[logging.LogRecord]()
    logger.addHandler(handler := logging.Handler())
    handler.emit = records.append  # type: ignore[method-assign]
    thinking = {"type": "enabled", "budget_tokens": 2000}
    try:
        with running(load=replace(LOAD, chat_template=PLAIN)) as server:
            for path, fields in (
                ("/v1/chat/completions", {"messages": HELLO, "reasoning": {"max_tokens": 5}}),
                ("/v1/chat/completions", {"messages": HELLO, "thinking_budget": 5}),
                ("/v1/responses", {"input": "Hello", "reasoning": {"max_tokens": 5}}),
                ("/v1/messages", {"messages": HELLO, "thinking": thinking}),
            ):
                limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
                assert server.post(path, {**fields, limit: 4}).status == 200
    finally:
        logger.removeHandler(handler)
    notes = [message for r in records if "thinking budgets" in (message := r.getMessage())]
    assert len(notes) == 1


def test_an_endpoint_without_the_setting_says_so(server: Running):
    found = refused(server, {"guided_choice": ["x"]}, "/v1/messages")
    assert "guided_choice" in found["message"]
    assert refused(server, {"n_cmpl": 2}, "/v1/responses")["param"] == "n_cmpl"


NEUTRAL = {
    "use_beam_search": False, "best_of": 1, "min_tokens": 0, "stop_token_ids": [],
    "bad_words": [], "logits_processors": [], "separate_reasoning": True, "top_a": 0, "tfs": 1.0,
    "guidance_scale": 1, "prompt_logprobs": None, "allowed_token_ids": None, "lora": [],
}  # fmt: skip


ODD: list[Any] = [
    True, False, 0, -1, 2**70, 0.5, 1e300, "", "x", "\x00", [], {}, [[]], [{}], {"": ""}, ["x"],
    [None], "{{ x }}", {"type": "x"}, {"effort": 1}, {"json": "{"}, {"json": 1}, {"regex": "("},
    {"choice": ["x" * 9000]}, {"include": 1}, {"num_predict": "x"}, {"stop": 5}, {"seed": []},
]  # fmt: skip


def test_random_values_never_cause_a_server_error(server: Running):
    chance = random.Random(21)
    names = [name for name, row in TABLE.items() if row.kind != "ignored"]
    bases: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": HELLO, "max_tokens": 2},
        "/v1/completions": {"prompt": "x", "max_tokens": 2},
        "/v1/responses": {"input": "x", "max_output_tokens": 2},
        "/v1/messages": {"messages": HELLO, "max_tokens": 2},
        "/completion": {"prompt": "x", "n_predict": 2},
        "/v1/embeddings": {"input": "x"},
    }
    seen = {200: 0, 400: 0}
    for _ in range(400):
        path = chance.choice(list(bases))
        extra = {
            name: chance.choice(ODD) for name in chance.sample(names, chance.choice([1, 1, 2]))
        }
        found = server.post(path, {**extra, **bases[path]})
        assert found.status in seen, (path, extra, found.body)
        if found.status == 400:
            assert found.json["error"]["message"], extra
        seen[found.status] += 1
    assert min(seen.values()) > 20


def test_values_without_effect_are_accepted(server: Running):
    assert text(chat(server, **NEUTRAL)) == text(chat(server))


# -- ignored and unknown ---------------------------------------------------------------------------


def test_ignored_fields_do_not_change_the_answer(server: Running):
    ignored = {name: "x" for name, row in TABLE.items() if row.kind == "ignored"}
    plain = text(chat(server))
    own = {endpoint for e in ENDPOINTS if (kind := e.operation.fields) for endpoint in [kind]}
    chat_fields = next(kind for kind in own if kind.__name__ == "ChatFields")
    sent = {name: value for name, value in ignored.items() if name not in own_names(chat_fields)}
    assert len(sent) > 80
    assert text(chat(server, **sent)) == plain


@contextmanager
def ignoring_lines(server: Running) -> Iterator[list[str]]:
    """Collect the log lines about ignored fields; none has been logged before."""
    logger, records, lines = logging.getLogger("zinc.server"), list[logging.LogRecord](), []
    assert server.application._service is not None
    server.application._service.ignored_fields.clear()
    logger.addHandler(handler := logging.Handler())
    handler.emit = records.append  # type: ignore[method-assign]
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        server.application._service.ignored_fields.clear()
    lines += [message for r in records if "ignoring" in (message := r.getMessage())]


def test_an_ignored_field_is_logged_once(server: Running):
    with ignoring_lines(server) as lines:
        for _ in range(3):
            chat(server, keep_alive="5m", provider={"order": ["x"]})
        chat(server, options={"num_ctx": 8192})
    assert len(lines) == 3
    for name, said in (("keep_alive", "--ttl"), ("provider", "one"), ("options.num_ctx", "loaded")):
        (line,) = [line for line in lines if f" {name} " in line]
        assert said in line


@pytest.mark.parametrize(
    "path", ["/api/chat", "/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
)
def test_an_unknown_option_of_ollama_is_ignored_with_a_line_in_the_log(server: Running, path: str):
    options = {"temprature": 0.5, "later\nversion": [1], "temperature": 0, "num_predict": 8}
    body = {"messages": HELLO} if "chat" in path else {"prompt": "x"}
    if "embeddings" in path:
        body = {"input": "x"}
    with ignoring_lines(server) as lines:
        found = [server.post(path, {**body, "options": options}).status for _ in range(3)]
    assert found == [200] * 3
    (near,) = [line for line in lines if "temprature" in line]
    assert near.endswith("there is no such option; did you mean options.temperature?")
    (line,) = [line for line in lines if "later" in line]
    assert line.startswith("ignoring the field options.later\\nversion of requests:")


def test_the_log_of_unknown_options_is_limited(server: Running):
    options = {f"option{i}": i for i in range(3000)}
    with ignoring_lines(server) as lines:
        chat(server, options=options)
    assert len(lines) == 1000


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("temprature", "temperature"),
        ("max_token", "max_tokens"),
        ("guided_jsn", "guided_json"),
        ("repetiton_penalty", "repetition_penalty"),
        ("tool_choise", "tool_choice"),
    ],
)
def test_an_unknown_field_is_refused_with_the_most_similar_name(
    server: Running, wrong: str, right: str
):
    error = refused(server, {wrong: 1})
    assert (error["param"], error["code"]) == (wrong, "unknown_parameter")
    assert f"Did you mean '{right}'?" in error["message"]


def test_an_unknown_field_without_similar_name_has_no_suggestion(server: Running):
    error = refused(server, {"xylophone": 1})
    assert "mean" not in error["message"]
    assert "--ignore-unknown-fields" in error["message"]


def test_embeddings_accept_fields_of_their_clients(server: Running):
    fields = {"input": "x", "keep_alive": "5m", "options": {"num_ctx": 2048}, "truncate": True}
    found = server.post("/v1/embeddings", {**fields, "input_type": "query", "user": "me"})
    assert found.status == 200


def test_tools_and_neutral_fields_of_real_clients(server: Running):
    """LiteLLM, Open WebUI and editors add these fields."""
    fields = {
        "tools": [WEATHER], "tool_choice": "auto", "parallel_tool_calls": True,
        "drop_params": True, "chat_id": "1", "session_id": "2", "metadata": {"x": "y"},
        "usage": {"include": True}, "provider": {"sort": "price"}, "intent": True, "snippy": {},
        "skip_special_tokens": True, "length_penalty": 1.0,
    }  # fmt: skip
    assert chat(server, **fields)["choices"]


def test_docs_contain_the_current_table():
    page = PAGE.read_text()
    command = "python -m zinc.server.apis.shared.foreign_fields.table docs/server.md"
    assert foreign_table.updated(page) == page, f"docs/server.md is out of date: {command}"
    assert "`repetition_penalty`" in page


def test_no_foreign_field_is_a_field_of_every_endpoint():
    """Such a row of the table could never apply."""
    kinds = [e.operation.fields for e in ENDPOINTS if e.operation.fields and e.operation.streams]
    common = set.intersection(*(own_names(kind) for kind in kinds))
    assert not common & TABLE.keys()
