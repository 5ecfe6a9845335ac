"""Request fields of other servers: how one becomes a field of ours, is refused, or is ignored.

table.py lists the fields, values.py reads those with members of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from zinc.server.apis.shared.fields import SamplingFields
from zinc.server.errors import ApiError, invalid, unsupported
from zinc.server.http.body import Fields, Json, own_names

SOURCES = "zinc.field_sources"
"""The key of a request's scope under which the sources of its mapped fields are kept."""


class Adoption:
    """A request body in which the fields of `table` have become fields of `kind`.

    Attributes: `body` is the new body, `own` are the names that `kind` has, `sources` maps a field
    of ours to the field that the client sent, `ignored` maps fields without effect to the reason.
    Raises ApiError for a value that cannot be honoured.
    """

    def __init__(
        self, kind: type[Fields], body: Mapping[str, Json], table: Mapping[str, ForeignField]
    ) -> None:
        self.own = own_names(kind)
        self.sources: dict[str, str] = {}
        self.ignored: dict[str, str] = {}
        self._answers = issubclass(kind, SamplingFields)
        foreign = {name: body[name] for name in body if name in table and name not in self.own}
        self.body = {name: value for name, value in body.items() if name not in foreign}
        for name, value in foreign.items():
            if value is not None:
                table[name].act(self, name, value)

    def put(self, source: str, targets: str | Sequence[str], value: Json) -> None:
        """Set the first of `targets` that the endpoint has, on behalf of `source`.

        Raises ApiError when the endpoint has none of them, or when the target has another value.
        """
        names = (targets,) if isinstance(targets, str) else targets
        target = next((name for name in names if name in self.own), None)
        if target is None:
            if self._answers:
                raise unsupported(source, "this endpoint has no such setting")
            self.ignored[source] = "this endpoint draws no tokens"
            return
        given = self.body.get(target)
        if given is not None and given != value:
            other = self.sources.get(target, target)
            raise invalid(source, f"{source} and {other} are both given", "they differ")
        if given is None:
            self.body[target] = value
            self.sources[target] = source


Act: TypeAlias = Callable[[Adoption, str, Json], None]
"""Applies a field to an adoption: (adoption, name, value)."""


@dataclass(frozen=True, slots=True)
class ForeignField:
    """A field of other servers.

    servers: who has it. kind: whether it is mapped, refused unless it has a neutral value, or
    ignored. effect: what it becomes or why it does not, for the documentation.
    """

    servers: str
    kind: Literal["mapped", "neutral", "ignored"]
    effect: str
    act: Act = field(compare=False)


def as_sent(error: ApiError, sources: Mapping[str, str]) -> ApiError:
    """Return the error with the field that the client sent in place of the field it became."""
    found = re.fullmatch(r"([^.\[]+)(.*)", error.param or "", re.DOTALL)
    if found is None or error.param is None or found[1] not in sources:
        return error
    source = f"{sources[found[1]]}{found[2]}"
    what = error.what.replace(error.param, source, 1)
    return ApiError(
        error.status,
        what,
        error.why,
        error.hint,
        code=error.code,
        kind=error.kind,
        param=source,
        headers=error.headers,
        details=error.details,
    )


def mapped(servers: str, effect: str, act: Act) -> ForeignField:
    """Return a field that `act` maps to fields of ours."""
    return ForeignField(servers, "mapped", effect, act)


def renamed(servers: str, targets: str | Sequence[str]) -> ForeignField:
    """Return a field that is the first of `targets` an endpoint has, under another name."""

    def act(adoption: Adoption, name: str, value: Json) -> None:
        adoption.put(name, targets, value)

    names = (targets,) if isinstance(targets, str) else targets
    return ForeignField(servers, "mapped", " or ".join(f"`{name}`" for name in names), act)


def neutral(servers: str, why: str, *values: Json) -> ForeignField:
    """Return a field that is refused, with the reason, unless it has one of `values`."""

    def act(adoption: Adoption, name: str, value: Json) -> None:
        if not any(value == each and type(value) is type(each) for each in values):
            raise unsupported(name, why)

    return ForeignField(servers, "neutral", why, act)


def ignored(servers: str, why: str, *names: str) -> dict[str, ForeignField]:
    """Return fields that have no effect, by name."""

    def act(adoption: Adoption, name: str, value: Json) -> None:
        adoption.ignored[name] = why

    return {name: ForeignField(servers, "ignored", why, act) for name in names}
