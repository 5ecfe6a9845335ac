"""Settings that belong to a model: what a Modelfile's parameters, messages and template mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zinc.core.errors import RequestError
from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.engine.load.settings import (
    NO_SETTINGS,
    ModelSettings,
    is_own_template,
    modelfile_of,
    settings_of,
    with_modelfile,
)
from zinc.hub.modelfile import Modelfile, Parameter, parse, text_of

CHATML = """{{ if .System }}<|im_start|>system
{{ .System }}<|im_end|>
{{ end }}<|im_start|>user
{{ .Prompt }}<|im_end|>
<|im_start|>assistant
"""
LLAMA3 = "<|start_header_id|>user<|end_header_id|>\n\n{{ .Prompt }}<|eot_id|>"


def settings(**parameters: object) -> ModelSettings:
    given = [Parameter(name, value, "Modelfile, line 2") for name, value in parameters.items()]
    return with_modelfile(NO_SETTINGS, Modelfile("demo", given), EMBEDDED_MODEL)


def test_parameters_become_sampling_and_context():
    found = settings(temperature="0.5", top_k=7, num_ctx="2048", stop=["a", "b"], seed="3")
    assert found.context == 2048
    assert found.sampling == {"temperature": 0.5, "top_k": 7, "seed": 3, "stop": ("a", "b")}
    assert not found.notes


@pytest.mark.parametrize(("given", "limit"), [("40", 40), (-1, None), (-2, None)])
def test_num_predict_is_the_token_limit(given: object, limit: int | None):
    assert settings(num_predict=given).sampling == {"max_tokens": limit}


def test_parameters_for_ollamas_engine_are_noted():
    (note,) = settings(num_gpu=99).notes
    assert note == "Modelfile, line 2: num_gpu has no effect: --gpu-layers decides"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("temprature", "1", "there is no parameter temprature. Write temperature"),
        ("colour", "red", "there is no parameter colour. Choose one of "),
        ("temperature", "hot", "temperature is 'hot': it must be a number"),
        ("temperature", "-1", "temperature is -1.0"),
        ("top_k", 0.5, "top_k is '0.5': it must be a whole number"),
        ("top_p", True, "top_p is 'True': it must be a number"),
        ("num_ctx", "0", "num_ctx is 0: it must be positive"),
        ("stop", "", "stop is ''"),
    ],
)
def test_a_bad_parameter_names_its_line(name: str, value: object, said: str):
    with pytest.raises(RequestError) as caught:
        settings(**{name: value})
    assert str(caught.value).startswith("Modelfile, line 2: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (["user"], ["system: own", "user: first", "assistant: second", "user: sent"]),
        (["system", "user"], ["system: sent", "user: first", "assistant: second", "user: sent"]),
    ],
)
def test_conversations_begin_with_the_models_messages(sent: list[str], expected: list[str]):
    messages: list[Any] = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "second"},
    ]
    own = ModelSettings(system="own", messages=tuple(messages))
    found = own.conversation([{"role": role, "content": "sent"} for role in sent])
    assert [f"{each['role']}: {each['content']}" for each in found] == expected
    assert list(NO_SETTINGS.conversation(messages)) == messages


def test_system_messages_are_part_of_the_system_prompt():
    found = parse("FROM demo\nMESSAGE system Be brief.\nMESSAGE user Hi\nSYSTEM A pirate.", "M")
    own = with_modelfile(NO_SETTINGS, found, EMBEDDED_MODEL)
    assert own.system == "A pirate.\n\nBe brief."
    assert [each["role"] for each in own.messages] == ["user"]
    assert with_modelfile(own, parse("FROM demo", "M"), EMBEDDED_MODEL) == own


@pytest.mark.parametrize(
    ("template", "is_own"), [(CHATML, True), (LLAMA3, False), ("{{ .Prompt }}", False)]
)
def test_a_go_template_is_compared_by_its_control_tokens(template: str, is_own: bool):
    assert is_own_template(template, EMBEDDED_MODEL) is is_own
    given = Modelfile("demo", template=template, template_where="Modelfile, line 4")
    notes = with_modelfile(NO_SETTINGS, given, EMBEDDED_MODEL).notes
    expected = "Modelfile, line 4: the template is not used; the model file's own is"
    assert notes == (() if is_own else (expected,))


def test_a_file_gives_settings_which_are_written_as_they_were_read(tmp_path: Path):
    path = tmp_path / "Modelfile"
    path.write_text(
        f"FROM {EMBEDDED_MODEL}\nPARAMETER num_ctx 512\nPARAMETER num_predict -1\n"
        "PARAMETER stop .\nSYSTEM Be brief.\nMESSAGE user Hi\n"
    )
    found = settings_of(path)
    assert (found.context, found.system) == (512, "Be brief.")
    written = parse(text_of(modelfile_of(found, "demo")), "Modelfile")
    assert with_modelfile(NO_SETTINGS, written, EMBEDDED_MODEL) == found
    for model in (EMBEDDED_MODEL, "qwen3:8b", None):
        assert settings_of(model) is NO_SETTINGS


def test_a_client_cannot_name_adapters():
    """They are files, and `with_modelfile` gets no folder for what a client sends."""
    given = parse("FROM demo\nADAPTER ./x.gguf", "M")
    with pytest.raises(RequestError, match="a request cannot name adapters"):
        with_modelfile(NO_SETTINGS, given, EMBEDDED_MODEL)
    own = with_modelfile(NO_SETTINGS, given, EMBEDDED_MODEL, Path("models"))
    assert own.lora == (Path("models/x.gguf"),)
