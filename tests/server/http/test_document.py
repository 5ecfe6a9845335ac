"""Random requests generated from the OpenAPI document are answered as it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import Running, running

from zinc.server.endpoints import OPERATIONS
from zinc.server.http.openapi import document

DOCUMENT = document(OPERATIONS, False)
# Answers are kept short; all other values are generated from the document.
LIMITS = {"max_tokens": 2, "max_completion_tokens": 2, "max_output_tokens": 2, "n_predict": 2}
FIXED = {
    **LIMITS,
    "n": 1, "n_cmpl": 1, "best_of": 1, "model": "demo", "background": False,
}  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(), each, max_size=3),
    max_leaves=5,
)  # fmt: skip


def values(schema: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Generate values that a JSON schema of the document allows, with limited depth."""
    if "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of(*(values(each, depth) for each in schema["anyOf"]))
    match schema.get("type"):
        case "object":
            required = set(schema.get("required", ()))
            properties = {
                name: values(each, depth + 1)
                for name, each in schema.get("properties", {}).items()
                if depth < 3 or name in required
            }
            optional = {k: v for k, v in properties.items() if k not in required}
            found = st.fixed_dictionaries({k: properties[k] for k in required}, optional=optional)
            more = schema.get("additionalProperties")
            if depth == 0 or not isinstance(more, dict):
                return found
            extra = st.dictionaries(
                st.text("ab01", max_size=3), values(more, depth + 1), max_size=2
            )
            return st.builds(lambda a, b: {**b, **a}, found, extra)
        case "array":
            item = values(schema.get("items", {}), depth + 1)
            return st.lists(item, min_size=schema.get("minItems", 0), max_size=2)
        case "string":
            return st.text(min_size=schema.get("minLength", 0), max_size=8)
        case "integer":
            return st.integers(schema.get("minimum", -5), min(schema.get("maximum", 300), 300))
        case "number":
            return st.floats(-3, 3) | st.integers(-2, 3)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
    return JSON


POSTS = [o for o in OPERATIONS if o.fields is not None and not o.path.startswith("/models/")]


@pytest.fixture(scope="module")
def own() -> Iterator[Running]:
    """A server for this module alone: `keep_alive` sets when its model is unloaded."""
    with running() as found:
        yield found


@pytest.mark.parametrize("operation", POSTS, ids=lambda o: o.path)
def test_requests_that_the_document_allows_are_answered(own: Running, operation):
    described = DOCUMENT["paths"][operation.path][operation.method.lower()]
    schema = described["requestBody"]["content"]["application/json"]["schema"]
    fields = DOCUMENT["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]["properties"]
    limit = {name: LIMITS[name] for name in LIMITS if name in fields}

    @settings(
        max_examples=examples(25),
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(body=values(schema))
    def run(body: dict[str, Any]) -> None:
        body = {**limit, **{name: FIXED.get(name, value) for name, value in body.items()}}
        found = own.request(operation.method, operation.path, body)
        assert str(found.status) in described["responses"]
        # 403: this server does not let clients change its models.
        assert found.status in (200, 400, 403, 501), found.body
        kind = found.headers["content-type"].split(";")[0]
        assert kind in described["responses"][str(found.status)]["content"]
        if kind == "application/json":
            json.loads(found.body)

    run()
