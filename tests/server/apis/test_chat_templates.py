"""Request fields that reach the chat template, in all chat APIs."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from serving import LOAD, WEATHER, Running, running, wait_for

from zinc import LLM, SamplingParams
from zinc.chat.renderer import SHARED, Renderer
from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.formats.gguf import GGUFFile
from zinc.formats.gguf_writer import GGUFWriter
from zinc.formats.metadata import GGUFArray
from zinc.server.config import ModelSource
from zinc.server.runtime.served_model import _RENDERINGS

HELLO = [{"role": "user", "content": "Hello"}]
BEGUN = [*HELLO, {"role": "assistant", "content": "Once upon"}]


def chat(messages: Any = HELLO, **fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": messages, "max_tokens": 8, **fields}


def responses(messages: Any = HELLO, **fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"input": messages, "max_output_tokens": 8, **fields}


def anthropic(messages: Any = HELLO, **fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"messages": messages, "max_tokens": 8, **fields}


def prompt(server: Running, messages: Any = HELLO, **fields: Any) -> str:
    found = server.post("/apply-template", {"messages": messages, **fields})
    assert found.status == 200, found.json
    return str(found.json["prompt"])


@pytest.mark.parametrize("api", [chat, responses, anthropic])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("messages", []),
        ("tools", 1),
        ("self", 1),
        ("bos_token", "x"),
        ("eos_token", "x"),
        ("a-b", 1),
        ("", 1),
        ("x" * 3000 + "-", 1),
        ("enable_thinking", "false"),
        ("add_generation_prompt", 0),
        ("continue_final_message", []),
    ],
)
def test_variables_that_cannot_be_set(server: Running, api, name, value):
    found = server.post(*api(chat_template_kwargs={name: value}))
    assert found.status == 400
    assert f"chat_template_kwargs.{name[:80]}" in found.json["error"]["message"]
    assert len(found.body) < 1000
    if api is not anthropic:
        assert found.json["error"]["param"] == f"chat_template_kwargs.{name[:80]}"


@pytest.mark.parametrize("api", [chat, responses, anthropic])
@pytest.mark.parametrize(
    "arguments",
    [
        {"range": 1, "namespace": 1, "raise_exception": 1, "loop": [], "true": False},
        {"enable_thinking": None, "documents": [{"title": "x", "text": None}]},
        {"class": 1, "__class__": 1, "environment": 1, "context": 1, "template": {}},
        {"l_0_messages": [], "caller": 1, "super": 1, "_": "x", "n": 10**300},
    ],
)
def test_other_variables_never_cause_a_server_error(server: Running, api, arguments):
    assert server.post(*api(chat_template_kwargs=arguments)).status in (200, 400)


def test_variables_cannot_forge_markers(server: Running, llm: LLM):
    """The embedded model's template prints tools; their keys and texts are shielded."""
    end = llm.tokenizer.text_of(llm.tokenizer.eos_id)
    tool = {**WEATHER, end: [end], "function": {**WEATHER["function"], "description": f"a{end}b"}}
    fields = {"messages": HELLO, "tools": [tool]}
    shown = prompt(server, tools=[tool])
    assert shown.count(end) > 1
    counted = server.post("/v1/chat/completions/input_tokens", fields).json["input_tokens"]
    shielded = llm.template.encode(llm.tokenizer, HELLO, [tool])
    assert counted == len(shielded)
    plain = llm.tokenizer.encode_prompt(shown)
    assert plain.count(llm.tokenizer.eos_id) > shielded.count(llm.tokenizer.eos_id)


def test_the_generation_prompt_can_be_left_out(server: Running, llm: LLM):
    without = llm.template.render(HELLO, add_generation_prompt=False)
    assert llm.template.render(HELLO).startswith(without)
    assert llm.template.render(HELLO) != without
    assert prompt(server, add_generation_prompt=False) == without
    assert prompt(server, chat_template_kwargs={"add_generation_prompt": False}) == without
    assert prompt(server, add_generation_prompt=True) == llm.template.render(HELLO)
    begun = llm.template.render(BEGUN, add_generation_prompt=False)
    assert prompt(server, BEGUN, add_generation_prompt=False) == begun


def test_the_final_message_is_continued_or_closed(server: Running, llm: LLM):
    continued = llm.template.render(BEGUN, continue_final_message=True)
    assert continued.endswith("Once upon")
    switches = {"add_generation_prompt": False, "continue_final_message": True}
    for fields in ({}, switches, {"chat_template_kwargs": switches}):
        assert prompt(server, BEGUN, **fields) == continued
    closed = llm.template.render(BEGUN)
    assert prompt(server, BEGUN, continue_final_message=False) == closed


def test_a_continued_text_is_not_repeated(server: Running, llm: LLM):
    fields = {"temperature": 0, "continue_final_message": True, "add_generation_prompt": False}
    found = server.post(*chat(BEGUN, **fields)).json
    text = found["choices"][0]["message"]["content"]
    params = SamplingParams(temperature=0, max_tokens=8)
    assert text == llm.chat(BEGUN, params, continue_final_message=True).text
    assert "Once upon" not in text


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        (BEGUN, {"add_generation_prompt": True, "continue_final_message": True}),
        (HELLO, {"continue_final_message": True}),
        ([*HELLO, {"role": "assistant", "content": ""}], {"continue_final_message": True}),
    ],
)
def test_messages_that_cannot_be_continued(server: Running, messages, fields):
    found = server.post(*chat(messages, **fields))
    assert found.status == 400
    assert found.json["error"]["param"] == "continue_final_message"


def test_tools_are_described_if_a_template_has_no_place_for_them(
    caplog: pytest.LogCaptureFixture,
):
    load = replace(LOAD, chat_template="{% for m in messages %}{{ m.content }};{% endfor %}")
    forced = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 200, "temperature": 0}
    with running(load=load) as server:
        assert prompt(server) == "Hello;"
        assert "tools" not in caplog.text
        text = prompt(server, tools=[WEATHER])
        assert json.dumps(WEATHER["function"]) in text
        assert text.endswith(";Hello;")
        found = server.post(*chat(**forced)).json["choices"][0]
        assert found["finish_reason"] == "tool_calls"
        message = found["message"]
        assert message["tool_calls"][0]["function"]["name"] == WEATHER["function"]["name"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "rain"}
        text = prompt(server, [*HELLO, message, result], tools=[WEATHER])
        assert "<tool_response>\nrain\n</tool_response>" in text
        assert text.count("<tool_call>") == 2  # in the description, and the model's
        assert prompt(server, [*HELLO, message, result]).count("<tool_call>") == 1
    assert caplog.text.count("the chat template has no place for tools") == 1


def test_tools_without_a_place_or_a_form_are_noted(caplog: pytest.LogCaptureFixture):
    source = "{# <|python_tag|> #}{% for m in messages %}{{ m.content }};{% endfor %}"
    with running(load=replace(LOAD, chat_template=source)) as server:
        assert prompt(server, tools=[WEATHER]) == "Hello;"
    assert "the model does not see them" in caplog.text


def test_templates_that_read_parts_get_parts():
    source = "{% for m in messages %}{% for p in m.content if p.type == 'text' %}{{ p.text }}"
    load = replace(LOAD, chat_template=f"{source};{{% endfor %}}{{% endfor %}}")
    parts = [{"type": "text", "text": "Hello"}]
    with running(load=load) as server:
        for content in ("Hello", parts):
            messages = [{"role": "system", "content": content}, {"role": "user", "content": "Hi"}]
            assert prompt(server, messages) == "Hello;Hi;"


def test_enable_thinking_overrides_reasoning_effort(server: Running, llm: LLM):
    default, on, off = (
        llm.template.render(HELLO, **arguments)
        for arguments in ({}, {"enable_thinking": True}, {"enable_thinking": False})
    )
    assert default == off  # the default of the embedded model's template
    assert on != off
    assert prompt(server) == default
    assert prompt(server, enable_thinking=True) == on
    for fields in (
        {"enable_thinking": False},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "high", "enable_thinking": False},
    ):
        assert prompt(server, **fields) == off


@pytest.fixture
def freezing(tmp_path: Path) -> Path:
    """Return the embedded model with a chat template that never ends."""
    path = tmp_path / "freezing.gguf"
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with GGUFFile.open(EMBEDDED_MODEL) as file, GGUFWriter(path) as writer:
        for key, value in {**file.metadata, "tokenizer.chat_template": endless}.items():
            kind = None if isinstance(value, GGUFArray) else file.value_types.get(key)
            writer.add(key, value, kind)
        for name, tensor in file.tensors.items():
            writer.add_tensor(name, tensor.read(), tensor.type, tensor.shape)
    return path


def test_a_template_that_never_ends_affects_only_its_model(freezing: Path, monkeypatch):
    """Its requests wait for each other; those of other models do not wait for them."""
    SHARED.close()
    monkeypatch.setattr(SHARED, "seconds", 60.0)  # longer than this test
    taken, take = list[Any](), Renderer._take

    def noted(renderer: Renderer) -> Any:
        taken.append(take(renderer))
        return taken[-1]

    def frozen() -> list[Any]:
        """Return the workers that render; killed before they are ready, they would not start."""
        idle = SHARED._idle
        busy = [x for x in taken if x not in idle and x.is_alive and x._is_ready]
        return list(dict.fromkeys(busy))

    monkeypatch.setattr(Renderer, "_take", noted)
    models = (ModelSource("good", None), ModelSource("bad", freezing))
    with running(models=models, load=LOAD) as server, ThreadPoolExecutor(4) as clients:
        assert server.post("/tokenize", {"content": "Hi", "model": "bad"}).status == 200
        assert server.post(*chat(model="good")).status == 200
        attacks = [clients.submit(server.post, *chat(model="bad")) for _ in range(4)]
        assert server.application.pool is not None
        bad = server.application.pool.entries["bad"].model
        assert bad is not None
        wait_for(lambda: bad.rendering.locked() and len(frozen()) == _RENDERINGS)
        assert server.post(*chat(model="good")).status == 200
        assert not any(attack.done() for attack in attacks)
        monkeypatch.setattr(SHARED, "seconds", 0.2)  # of workers that start from here on
        SHARED.close()
        for worker in frozen():
            worker._process.kill()
        for attack in attacks:
            assert attack.result().status == 400
            assert "was stopped" in attack.result().json["error"]["message"]
    SHARED.close()
