"""Fields of requests: JSON values checked against classes. Errors name the field that is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, FailFast, ValidationError

from zinc.server.errors import ApiError, invalid
from zinc.server.http.body import Json


class FirstError(FailFast):
    """Annotation of a list field: report the first wrong item only, as there may be millions."""

    __hash__ = object.__hash__  # typing hashes the members of unions


class Fields(BaseModel):
    """Base class of requests and their parts. Types are strict: "1" is not accepted as a number.

    A field with the default None may be null. Unknown fields are refused at the top level of a
    request (`parse`) but ignored within messages: clients send back the messages of a server with
    additional fields.
    """

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())


Model = TypeVar("Model", bound=Fields)


def own_names(kind: type[Fields]) -> set[str]:
    """Return the names that the fields of `kind` have in JSON."""
    return {field.alias or name for name, field in kind.model_fields.items()}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name in `known` that is most similar to `name`, or None if none is similar."""
    found = difflib.get_close_matches(name[:80], list(known), 1, 0.75)
    return found[0] if found else None


def parse(
    kind: type[Model], value: Json, *, ignore_unknown: bool = False, known: Iterable[str] = ()
) -> Model:
    """Return `value` as an instance of `kind`. Raises ApiError 400, naming the wrong field.

    ignore_unknown: accept unknown fields. known: further names to suggest for an unknown field.
    """
    if not isinstance(value, dict):
        raise invalid(None, "the body is not a JSON object", f"it is {_json_kind(value)}")
    try:
        request = kind.model_validate(_with_integers(kind, value))
    except ValidationError as error:
        raise _explained(error, kind, value) from None
    except RecursionError:
        raise invalid(None, "the request is nested too deep") from None
    unknown = next(iter(request.model_extra or {}), None)
    if unknown is not None and not ignore_unknown:
        near = nearest(unknown, [*own_names(kind), *known])
        advice = (
            "leave it out" if near is None else f"did you mean {near!r}? Leave it out otherwise"
        )
        raise ApiError(
            400,
            f"there is no field {unknown[:80]!r}",
            "this endpoint does not define it",
            f"{advice}, or start the server with --ignore-unknown-fields",
            param=unknown[:80],
            code="unknown_parameter",
        )
    return request


def _with_integers(kind: type[Fields], value: dict[str, Json]) -> dict[str, Json]:
    """Return `value` with a number such as 4.0 as an integer where `kind` has an integer.

    JSON has one type of numbers, and some languages write whole numbers with a fraction.
    """
    names = [name for name in _integers(kind) if type(value.get(name)) is float]
    whole = {name: int(value[name]) for name in names if value[name].is_integer()}
    return {**value, **whole} if whole else value


@cache
def _integers(kind: type[Fields]) -> frozenset[str]:
    """Return the names in JSON of the fields of `kind` that may be integers and no other number."""
    return frozenset(
        field.alias or name
        for name, field in kind.model_fields.items()
        if int in (types := _types(field.annotation)) and float not in types
    )


def _types(annotation: Any) -> set[Any]:
    """Return the alternatives of a type annotation."""
    if get_origin(annotation) in (Union, UnionType):
        return set().union(*map(_types, get_args(annotation)))
    if get_origin(annotation) is Annotated:
        return _types(get_args(annotation)[0])
    return {annotation}


def _explained(error: ValidationError, kind: type[Fields], value: dict[str, Json]) -> ApiError:
    """Return an ApiError for a validation error of `value`, a request of `kind`."""
    # A union reports an error for each alternative. The deepest one is most likely what was meant.
    found = error.errors(include_url=False, include_input=False, include_context=False)
    paths = [(_path(value, e["loc"], e["type"] == "missing"), e["msg"]) for e in found]
    path, message = max(paths, key=lambda each: len(each[0]))
    same = list(dict.fromkeys(m for p, m in paths if p == path))
    name = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).lstrip(".")
    if all(e["type"] == "missing" for e, (p, _) in zip(found, paths, strict=True) if p == path):
        near = nearest(name, value.keys() - own_names(kind))
        hint = "" if near is None else f"write {name!r} instead of {near!r}"
        return invalid(name, f"{name} is missing", "the endpoint needs it", hint)
    why = " or ".join(m[0].lower() + m[1:] for m in same[:4]) or message
    return invalid(name or None, f"{name or 'the request'} is not valid", why)


def _path(value: Json, where: Sequence[int | str], missing: bool) -> list[int | str]:
    """Return the keys and indices of an error's location in `value`.

    where: the location as pydantic reports it, which also contains names of union members.
    missing: the last key is a field that `value` lacks.
    """
    path: list[int | str] = []
    for at, part in enumerate(where):
        if isinstance(value, dict) and isinstance(part, str):
            if part in value:
                value = value[part]
            elif not (missing and at == len(where) - 1):
                continue
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            continue
        path.append(part[:80] if isinstance(part, str) else part)
    return path


def _json_kind(value: Json) -> str:
    kinds = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")
