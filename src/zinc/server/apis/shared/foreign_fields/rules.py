"""Rules for request fields of other servers: translate them to zinc's, refuse or ignore them.

table.py lists the fields. values.py translates fields whose values need more than a new name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Literal, TypeAlias

from zinc.core.dataclass import dataclass
from zinc.server.apis.shared.fields import SamplingFields
from zinc.server.errors import ApiError, invalid, unsupported
from zinc.server.http.body import Json
from zinc.server.http.fields import Fields, own_names

SOURCES = "zinc.field_sources"
"""Key in the ASGI scope for the foreign field that each translated field comes from."""


class TranslatedBody:
    """A request body whose foreign fields, those in `table`, are translated to fields of `kind`.

    own: the names of the fields of `kind`. fields: the translated body. sources: for a field of
    zinc, the foreign field that set it. ignored: for a foreign field without effect, the reason.
    Raises ApiError for a value that is not supported.
    """

    def __init__(
        self, kind: type[Fields], body: Mapping[str, Json], table: Mapping[str, ForeignField]
    ) -> None:
        self.own = own_names(kind)
        self.sources: dict[str, str] = {}
        self.ignored: dict[str, str] = {}
        self._answers = issubclass(kind, SamplingFields)
        foreign = {name: body[name] for name in body if name in table and name not in self.own}
        self.fields = {name: value for name, value in body.items() if name not in foreign}
        for name, value in foreign.items():
            if value is not None:
                table[name].apply(self, name, value)

    def put(self, source: str, targets: str | Sequence[str], value: Json) -> None:
        """Set the first field in `targets` that the endpoint has to the value of `source`.

        Raises ApiError if the endpoint has none of them, or if the target has a different value.
        """
        names = (targets,) if isinstance(targets, str) else targets
        target = next((name for name in names if name in self.own), None)
        if target is None:
            if self._answers:
                raise unsupported(source, "this endpoint has no such setting")
            self.ignored[source] = "this endpoint generates no tokens"
            return
        given = self.fields.get(target)
        if given is not None and given != value:
            other = self.sources.get(target, target)
            raise invalid(source, f"{source} and {other} are both given", "they differ")
        if given is None:
            self.fields[target] = value
            self.sources[target] = source


Apply: TypeAlias = Callable[[TranslatedBody, str, Json], None]
"""Translates one foreign field: takes the body, and the name and value of the field."""


@dataclass(frozen=True, slots=True)
class ForeignField:
    """A request field of other servers.

    servers: names of the servers and clients that define it. kind: "mapped" (translated), "neutral"
    (refused unless it has a value without effect) or "ignored". effect: what it is translated to,
    or the reason why not; shown in the documentation.
    """

    servers: str
    kind: Literal["mapped", "neutral", "ignored"]
    effect: str
    apply: Apply = field(compare=False)


def as_sent(error: ApiError, sources: Mapping[str, str]) -> ApiError:
    """Return `error` with the name of the field that the client sent.

    sources: for a field of zinc, the foreign field that set it.
    """
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


def mapped(servers: str, effect: str, apply: Apply) -> ForeignField:
    """Return a field that the function `apply` translates."""
    return ForeignField(servers, "mapped", effect, apply)


def renamed(servers: str, targets: str | Sequence[str]) -> ForeignField:
    """Return a field that is another name for one of `targets`, the first that an endpoint has."""

    def apply(body: TranslatedBody, name: str, value: Json) -> None:
        body.put(name, targets, value)

    names = (targets,) if isinstance(targets, str) else targets
    return ForeignField(servers, "mapped", " or ".join(f"`{name}`" for name in names), apply)


def neutral(servers: str, why: str, *values: Json) -> ForeignField:
    """Return a field that is refused for the reason `why`, unless its value is in `values`."""

    def apply(body: TranslatedBody, name: str, value: Json) -> None:
        if not any(value == each and type(value) is type(each) for each in values):
            raise unsupported(name, why)

    return ForeignField(servers, "neutral", why, apply)


def ignored(servers: str, why: str, *names: str) -> dict[str, ForeignField]:
    """Return fields that are ignored for the reason `why`, by name."""

    def apply(body: TranslatedBody, name: str, value: Json) -> None:
        body.ignored[name] = why

    return {name: ForeignField(servers, "ignored", why, apply) for name in names}
