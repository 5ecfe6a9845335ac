"""Answers of a given form by the embedded model, validated by the jsonschema package."""

from __future__ import annotations

import json
import random
import re
import sys

import jsonschema
import numpy as np
import pytest
from effort import EVERY

from zinc import LLM, SamplingParams
from zinc.core.errors import RequestError, UnsupportedError
from zinc.engine.constraint import Thinking
from zinc.engine.request import Request

pytest.importorskip("llguidance")
N_SCHEMAS = 40 if EVERY else 16
PROMPT = "Here is an object in JSON: "


@pytest.fixture(scope="module")
def llm():
    with LLM(backend="cpu", threads=2) as model:
        yield model


def random_schema(rng, depth=0):
    kinds = ["string", "integer", "number", "boolean", "enum", "null"]
    kind = rng.choice(kinds + ["object", "array", "anyOf"] * (depth < 3)) if depth else "object"
    match kind:
        case "object":
            names = rng.sample(["name", "age", "colour", "x y", "größe", 'a"b', "id"], 3)
            needed = [name for name in names if rng.random() < 0.7]
            return {
                "type": "object",
                "properties": {name: random_schema(rng, depth + 1) for name in names},
                "required": needed,
                "additionalProperties": False,
            }
        case "array":
            low = rng.randint(0, 2)
            items = random_schema(rng, depth + 1)
            return {"type": "array", "items": items, "minItems": low, "maxItems": low + 2}
        case "anyOf":
            return {"anyOf": [random_schema(rng, depth + 1) for _ in range(2)]}
        case "enum":
            return {"enum": rng.sample(["red", "green", 3, None, True, "two words"], 3)}
        case "string":
            given = rng.choice(
                [{"maxLength": 12}, {"minLength": 3, "maxLength": 9}, {"format": "date"}]
            )
            return {"type": "string", **given}
        case "integer":
            return {
                "type": "integer",
                "minimum": rng.randint(-50, 0),
                "maximum": rng.randint(1, 500),
            }
        case "number":
            return {"type": "number", "minimum": 0, "maximum": 10, "multipleOf": 0.5}
        case _:
            return {"type": kind}


def test_json_is_valid_by_its_schema_every_time(llm):
    rng = random.Random(11)
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, max_tokens=800, seed=5)
    ids = llm.tokenizer.encode(PROMPT)
    for start in range(0, N_SCHEMAS, 8):
        schemas = [random_schema(rng) for _ in range(start, start + 8)]
        sequences = [
            llm.engine.submit(
                Request(
                    ids,
                    params,
                    end_tokens=llm.tokenizer.eog_ids,
                    constraint=llm.constraint("json_schema", schema).start(),
                )
            )
            for schema in schemas
        ]
        while not llm.engine.idle:
            llm.engine.step()
        for schema, s in zip(schemas, sequences, strict=True):
            assert s.finish_reason == "stop", (s.error, schema)
            ends = llm.tokenizer.eog_ids
            text = llm.tokenizer.decode([t for t in s.generated if t not in ends])
            jsonschema.validate(json.loads(text), schema)


def test_an_answer_matches_its_regular_expression(llm):
    pattern = "(cat|dog)s? [0-9]{2,4}"
    for seed in range(4):
        answer = llm.generate(
            "I have", SamplingParams(seed=seed), constraint=llm.constraint("regex", pattern)
        )
        assert re.fullmatch(pattern, answer.text)
        assert answer.finish_reason == "stop"


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "yes" | "no " NUMBER\nNUMBER: /[0-9]{1,3}/',
        'root ::= "yes" | "no " num\nnum ::= [0-9] [0-9]? [0-9]?',
    ],
    ids=["lark", "gbnf"],
)
def test_a_grammar_is_followed(llm, grammar):
    for seed in range(4):
        constraint = llm.constraint("grammar", grammar)
        answer = llm.generate("Is it?", SamplingParams(seed=seed), constraint=constraint)
        assert re.fullmatch("yes|no [0-9]{1,3}", answer.text)


def test_single_checks_agree_with_the_mask(llm):
    """Forced tokens are also the only tokens of the mask, one after the other."""
    rng, n = random.Random(3), llm.engine.n_vocab
    n_forced = 0
    for _ in range(12):
        constraint = llm.constraint("json_schema", random_schema(rng)).start()
        expected = ()
        for _ in range(8):
            forced = constraint.forced()
            assert tuple(forced[: len(expected)]) == expected
            alone = [constraint.allows(token) for token in range(n)]
            bits = np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")[:n]
            assert alone == bits.astype(bool).tolist()
            allowed = np.flatnonzero(bits).tolist()
            assert not forced or allowed == [forced[0]]
            n_forced += bool(forced)
            expected = tuple(forced[1:])
            constraint.accept(rng.choice(allowed))
            if constraint.finished:
                break
    assert n_forced > 5


class MaskAlone:
    """A constraint of which only the mask is used."""

    def __init__(self, constraint):
        self.mask, self.accept = constraint.mask, constraint.accept
        self._constraint = constraint

    def forced(self):
        return ()

    def allows(self, token):
        return False

    @property
    def finished(self):
        return self._constraint.finished


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_short_cuts_change_no_token(llm, temperature):
    """Forced tokens are not sampled, or sampled from a row that allows only them."""
    rng = random.Random(5)
    for seed in range(6):
        schema = random_schema(rng)
        short, masked = (
            llm.generate(
                PROMPT,
                SamplingParams(temperature=temperature, seed=seed, max_tokens=120, **options),
                constraint=constraint,
            )
            for constraint, options in (
                (llm.constraint("json_schema", schema), {}),
                # With a temperature, even a mask of one token takes a random number.
                (llm.constraint("json_schema", schema), {"logprobs": 0})
                if temperature
                else (MaskAlone(llm.constraint("json_schema", schema).start()), {}),
            )
        )
        assert short.token_ids == masked.token_ids


def test_an_answer_that_leaves_no_choice_is_given_without_the_model(llm):
    answer = llm.generate("Once", constraint=llm.constraint("regex", "entirely certain"))
    assert (answer.text, answer.finish_reason) == ("entirely certain", "stop")
    assert answer.timings.generate_seconds >= 0


def test_a_control_token_is_never_part_of_a_string(llm):
    constraint = llm.constraint("json_schema", {"type": "string"}).start()
    constraint.accept(llm.tokenizer.encode('"', add_special=False)[0])
    allowed = np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")
    assert allowed[: llm.tokenizer.n_vocab].sum() > 1000
    assert not any(allowed[i] for i in llm.tokenizer.special_ids)


@pytest.mark.parametrize(
    ("kind", "source", "why"),
    [
        ("json_schema", '{"type": 3}', "type must be"),
        ("json_schema", "{", "Expecting property name"),
        ("json_schema", {"type": "string", "format": "no-such"}, "format 'no-such' is not known"),
        ("json_schema", [1], "a schema is an object"),
        ("json_schema", {"a": "x" * 2_000_000}, "characters"),
        ("json_schema", {"$ref": "http://127.0.0.1/x"}, "refers outside the schema"),
        ("json_schema", False, "cannot be followed: false allows no value"),
        ("json_schema", {"items": [{}]}, "a list of schemas is prefixItems"),
        ("json_schema", {"uniqueItems": True}, "uniqueItems is not supported"),
        ("regex", "(", r'followed: invalid regex "\("[^:]*: unclosed group'),
        ("regex", "", "not empty"),
        ("grammar", "root ::= missing", "missing"),
        ("grammar", "nothing: here", "start"),
    ],
)
def test_unsupported_schemas_and_grammars_are_refused(llm, kind, source, why):
    with pytest.raises(RequestError, match=why):
        llm.constraint(kind, source)


@pytest.mark.parametrize("kind", [{"type": "object"}, "json", None])
def test_unknown_kinds_are_refused(llm, kind):
    with pytest.raises(RequestError, match=r"is not a kind of constraint.*json_schema"):
        llm.constraint(kind, {"type": "object"})


def test_a_failed_mask_fails_its_request_alone(llm):
    class Broken:
        finished = False

        def forced(self):
            return ()

        def allows(self, token):
            return False

        def mask(self):
            raise RequestError(
                "the grammar cannot say which tokens may follow", "the parser is lost"
            )

        def accept(self, token):
            raise AssertionError

    good = llm.generate("Once upon", SamplingParams(temperature=0, max_tokens=5))
    params = SamplingParams(temperature=0, max_tokens=5)
    bad = llm.engine.submit(Request(llm.tokenizer.encode("Once"), params, constraint=Broken()))
    again = llm.generate("Once upon", params)
    assert bad.finish_reason == "error"
    assert bad.n_generated == 0
    assert again.token_ids == good.token_ids
    with pytest.raises(RequestError, match="the parser is lost"):
        llm.generate("Once", constraint=Broken())


def test_reasoning_is_not_constrained(llm):
    start = llm.tokenizer.encode("<think>", add_special=False, parse_special=True)
    end = llm.tokenizer.encode("</think>", add_special=False, parse_special=True)
    messages = [{"role": "user", "content": "What is 12 + 7?"}]
    ids = llm.render(messages, enable_thinking=True)
    thinking = Thinking.after(ids, start, end, budget_tokens=10, opens=True)
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}}
    schema |= {"required": ["n"], "additionalProperties": False}
    answer = llm.generate(
        ids,
        SamplingParams(temperature=0, max_tokens=200),
        constraint=llm.constraint("json_schema", schema),
        thinking=thinking,
    )
    tokens = answer.token_ids
    assert tokens[: len(start)] == start
    at = next(i for i in range(len(tokens)) if tokens[i : i + len(end)] == end)
    assert at <= 10 + len(start)
    rest = [t for t in tokens[at + len(end) :] if t not in llm.tokenizer.eog_ids]
    jsonschema.validate(json.loads(llm.tokenizer.decode(rest)), schema)


def test_without_the_package_the_error_says_how_to_get_it(llm, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UnsupportedError, match=r"zinc-llm\[structured\]"):
        llm.constraint("json_object")


CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}


class City:
    """A class with the schema method of a Pydantic model."""

    @classmethod
    def model_json_schema(cls):
        return CITY


@pytest.mark.parametrize("given", ["schema", "text", "class", "form"])
def test_every_way_to_name_a_schema_makes_a_constraint(llm, given):
    constraint = {
        "schema": CITY,
        "text": json.dumps(CITY),
        "class": City,
        "form": llm.constraint("json_schema", CITY),
    }[given]
    params = SamplingParams(seed=1, max_tokens=40)
    messages = [{"role": "user", "content": "Where?"}]
    several = llm.generate([PROMPT, "Where? ", PROMPT], params, constraint=constraint)
    chunks = list(llm.stream(PROMPT, params, constraint=constraint))
    texts = [
        llm.generate(PROMPT, params, constraint=constraint).text,
        llm.generate(PROMPT, params, constraint=constraint).text,
        llm.chat(messages, params, constraint=constraint).text,
        "".join(chunk.text for chunk in chunks),
        *(each.text for each in several),
    ]
    for text in texts:
        jsonschema.validate(json.loads(text), CITY)
    assert texts[0] == texts[1]


def test_pydantic_models_are_constraints(llm):
    pydantic = pytest.importorskip("pydantic")

    class Answer(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=12)
        age: int = pydantic.Field(ge=0, le=2**63 - 1)
        kind: str | None = pydantic.Field(max_length=5)

    Answer.model_config = {"extra": "forbid"}
    Answer.model_rebuild(force=True)
    answer = llm.generate(PROMPT, SamplingParams(seed=2, max_tokens=300), constraint=Answer)
    assert Answer.model_validate_json(answer.text).age >= 0


@pytest.mark.parametrize(
    ("constraint", "why"),
    [
        (5, "constraint is an int: it takes a JSON schema, a Pydantic model or"),
        (int, "the class int is not a constraint"),
        ("{", "it is not JSON"),
        ({"type": "nothing"}, "type must be one of"),
    ],
)
def test_other_values_are_refused_as_constraints(llm, constraint, why):
    with pytest.raises(RequestError, match=why):
        llm.generate(PROMPT, SamplingParams(max_tokens=1), constraint=constraint)


def test_a_constraint_of_one_answer_is_not_given_to_several(llm):
    one = llm.constraint("json_schema", CITY).start()
    with pytest.raises(RequestError, match="one constraint cannot be used for 2 answers"):
        llm.generate([PROMPT, PROMPT], SamplingParams(max_tokens=5), constraint=one)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"const": 2**53 + 1}, [2**53 + 1], [2**53, 2**53 + 2]),
        ({"enum": [2**63, 1.5]}, [2**63, 1.5], [9223372036854776000, 2**63 - 1, 1]),
        ({"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 1}, [2**53 + 1], [2**53]),
        ({"type": "integer", "exclusiveMaximum": -(2**63)}, [-(2**63) - 1], [-(2**63)]),
        ({"maximum": 0.1}, [0.1, 0.05, -7], [0.10000000000000002, 0.11]),
        ({"minimum": 1e300}, [10**300, 10**301], [10**300 - 1]),
        ({"type": "number", "multipleOf": 0.01}, [0.01, 1.25, 3], [0.001, 1.255]),
        ({"type": "integer", "multipleOf": 10**20}, [10**20, 0], [10**20 + 10, 10**19]),
        ({"type": "integer", "multipleOf": 7, "minimum": -20}, [-14, 0, 700], [-21, 13]),
    ],
)
def test_numbers_are_exact(llm, schema, good, bad):
    form = llm.constraint("json_schema", schema)

    assert [value for value in good if not spelled(form, llm, format(value))] == []
    assert [value for value in bad if spelled(form, llm, format(value))] == []


def spelled(form, llm, text):
    """Return whether a form allows a text, by masks alone, one character after the other."""
    constraint = form.start()
    for char in text:
        (token,) = llm.tokenizer.encode(char, add_special=False)[-1:]
        if constraint.finished or not allowed(constraint, token):
            return False
        constraint.accept(token)
    return constraint.finished or any(allowed(constraint, end) for end in llm.tokenizer.eog_ids)


def allowed(constraint, token):
    return bool(constraint.mask()[token // 32] >> (token % 32) & 1)


def test_a_panic_of_the_library_is_an_error(llm, monkeypatch):
    class PanicException(BaseException):  # the name that pyo3 gives it
        __module__ = "pyo3_runtime"

    class Broken:
        def __init__(self, *args, **options):
            raise PanicException("index out of bounds")

        grammar_from_lark = staticmethod(str)

    monkeypatch.setattr("llguidance.LLMatcher", Broken)
    with pytest.raises(RequestError, match="llguidance failed: index out of bounds"):
        llm.constraint("json_schema", {"type": "null", "title": "panics"})


def test_a_grammar_is_compiled_once(llm):
    first = llm.constraint("json_schema", CITY)
    assert llm.constraint("json_schema", json.loads(json.dumps(CITY))) is first
