"""docs/server.md compared with the server: endpoints, fields, statuses and limits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.routing import Mount, Route

from zinc.cli.main import build_parser
from zinc.server.apis.openai import completions
from zinc.server.apis.shared import embeddings, fields, prompts
from zinc.server.apis.shared.fields import SamplingFields
from zinc.server.apis.shared.store import ResponseStore
from zinc.server.app import Application
from zinc.server.config import ModelSource, ServerConfig
from zinc.server.endpoints import ENDPOINTS
from zinc.server.http import body, connection
from zinc.server.http.openapi import document
from zinc.tokenizer import bpe, spm

TEXT = (Path(__file__).parents[2] / "docs" / "server.md").read_text()


def section(name: str) -> str:
    return TEXT.split(f"\n## {name}\n")[1].split("\n## ")[0]


def test_docs_list_exactly_the_endpoints():
    listed = set()
    for line in section("Endpoints").splitlines():
        if found := re.match(r"\| `(\w+) (\S+)` \|(.*?)\|", line):
            listed |= {(found[1], path) for path in (found[2], *re.findall("`(.+?)`", found[3]))}
    served = {
        (endpoint.operation.method, re.sub(r":\w+}", "}", path))
        for endpoint in ENDPOINTS
        for path in (endpoint.operation.path, *endpoint.aliases)
    }
    assert listed == served | {("GET", "/"), ("GET", "/docs"), ("GET", "/openapi.json")}


def test_every_route_is_an_endpoint_or_belongs_to_the_page():
    application = Application(ServerConfig((ModelSource("demo", None),)))
    routes = {r.path for r in application._routes if isinstance(r, Route | Mount)}
    known = {path for e in ENDPOINTS for path in (e.operation.path, *e.aliases)}
    assert {r for r in routes - known if r != "/" and not r.startswith("/page")} == {
        "/docs", "/openapi.json",
    }  # fmt: skip


def test_docs_list_the_sampling_fields():
    text = section("Fields").split("**Sampling.**")[1].split("\n\n")[0]
    assert set(re.findall("`(.+?)`", text)) == set(SamplingFields.model_fields)


def test_fields_in_docs_exist_at_some_endpoint():
    known = {
        field.alias or name
        for endpoint in ENDPOINTS
        if endpoint.operation.fields is not None
        for name, field in endpoint.operation.fields.model_fields.items()
    }
    values = {"required", "float", "base64", "reasoning_content", "llguidance", "strict"}
    values |= {"prompt_progress", "timings", "infill", "allowed_tools", "invalid_tool_arguments"}
    values |= {"date_string", "datetime", "bos_token", "eos_token"}  # of chat templates
    values |= {"results", "index", "relevance_score", "document", "score"}  # of ranked documents
    values |= {"done_reason", "length"}  # of Ollama's answers
    named = set(re.findall(r"`([a-z_]+)`", section("Fields"))) - values
    assert named <= known


def test_docs_list_the_statuses_of_the_openapi_document():
    listed = {int(s) for s in re.findall(r"^\| (\d{3}) \|", section("Errors"), re.MULTILINE)}
    described = {
        int(status)
        for methods in document([e.operation for e in ENDPOINTS], False)["paths"].values()
        for operation in methods.values()
        for status in operation["responses"]
    }
    # Statuses of requests that do not reach their endpoint, and of the server's own failures.
    assert listed == described - {200} | {405, 408, 500}


def test_docs_list_the_limits_of_the_code():
    text = section("Limits")
    config = ServerConfig((ModelSource("demo", None),))
    store = ResponseStore()
    for value in (
        f"`--max-waiting`, {config.max_waiting} |",
        f"`--max-connections`, {config.max_connections} |",
        f"`--max-body`, {config.max_body_bytes >> 20}M |",
        f"{body._MAX_DEPTH} levels",
        f"{body.MAX_VALUES}; {body.MAX_MEMBERS} objects",
        f"the first {body.FREE_BYTES >> 10} KiB of each body do not count |",
        f"`--max-body-memory`, {config.body_memory_bytes >> 20}M",
        f"counted | {prompts.MAX_COUNTED_TOKENS} |",
        f"{bpe._LONGEST_RUN}; {spm._LONGEST_RUN} with SentencePiece",
        f"| {connection.PATIENCE_S:g} s |",
        f"| {body.BODY_TIMEOUT_S:g} s |",
        f"{fields.MAX_ANSWERS} answers",
        f"completion | {completions.MAX_PROMPTS} |",
        f"request | {embeddings.MAX_INPUTS} |",
        f"| {fields.MAX_TOP_LOGPROBS} |",
        f"{store._max_responses}, or {store._max_bytes >> 20} MiB",
    ):
        assert value in text, value


# The section about llama.cpp's tests contains options of other commands.
COMMAND_TEXT = TEXT.replace(section("llama.cpp's server tests"), "")


@pytest.mark.parametrize("option", sorted(set(re.findall(r"--[a-z][a-z-]+", COMMAND_TEXT))))
def test_options_in_docs_exist(option):
    commands = next(a for a in build_parser()._actions if a.choices)
    texts = [commands.choices[name].format_help() for name in ("serve", "launch")]
    assert any(option in text for text in texts)
