"""Dataclasses whose methods are compiled when they are first used.

    from zinc.core.dataclass import dataclass

The decorator of `dataclasses` compiles up to six methods of each class when the class is defined.
That was 40% of the time to import zinc with its GPU backends, and a process uses few of the methods
(benchmarks/results/startup.json). Here, a descriptor stands in for each method until its first use.
The stdlib still finds the fields, makes the slots and checks inheritance. The source of the methods
is written here, because the stdlib compiles the `__init__` of a frozen class only together with
`__setattr__` and `__delattr__`. `field`, `fields` and `replace` come from `dataclasses`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, FrozenInstanceError, fields
from functools import partial
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **arguments: bool) -> Any:
        """Make `cls` a dataclass without InitVar. Takes eq, frozen, kw_only and slots."""
        return partial(_dataclass, **arguments) if cls is None else _dataclass(cls, **arguments)


def _dataclass(
    cls: Any, *, eq: bool = True, frozen: bool = False, kw_only: bool = False, slots: bool = False
) -> type:
    own = vars(cls)
    names = {"__init__", "__repr__", *(("__eq__",) if eq else ())} - own.keys()
    # In a class that defines __eq__ and not __hash__, Python sets __hash__ to None.
    if eq and ("__hash__" not in own or (own["__hash__"] is None and "__eq__" in own)):
        names.add("__hash__")
    cls.__doc__ = cls.__doc__ or cls.__name__  # the stdlib's default has the signature in it
    # The stdlib freezes only classes that inherit from dataclasses, because it then compares
    # `frozen` with that of the bases. It would compile two methods for any other class too.
    inherits = hasattr(cls, "__dataclass_fields__")
    options: dict[str, Any] = {"frozen": frozen and inherits, "kw_only": kw_only, "slots": slots}
    cls = dataclasses.dataclass(init=False, repr=False, eq=False, **options)(cls)
    for name in names:
        setattr(cls, name, None if name == "__hash__" and not frozen else _Method(cls, name))
    if frozen and not inherits:
        _freeze(cls, slots)
    params = cls.__dataclass_params__  # classes that inherit from this one, and `help`, read it
    params.init, params.repr, params.eq, params.frozen = True, True, eq, frozen
    return cls  # type: ignore[no-any-return]


class _Method:
    """Stand-in for a method of `cls` that replaces itself with the compiled method."""

    __slots__ = ("cls", "name")

    def __init__(self, cls: type, name: str) -> None:
        self.cls, self.name = cls, name

    def __get__(self, instance: object, owner: type) -> Any:
        """Compile the method and bind it to `instance`. Two threads may compile equal methods."""
        method = _COMPILERS[self.name](self.cls)
        setattr(self.cls, self.name, method)
        return method.__get__(instance, owner)


@dataclasses.dataclass(frozen=True, slots=True)
class _Frozen:
    """Owner of the stdlib's methods that copy and pickle frozen classes with slots."""


def _freeze(cls: type, slots: bool) -> None:
    """Add the methods of frozen dataclasses to `cls`, without a compilation for each class."""
    for name, action in (("__setattr__", "assign to"), ("__delattr__", "delete")):
        if name in vars(cls):
            raise TypeError(f"{cls.__name__} is frozen and defines {name}")
        setattr(cls, name, _guard(cls, name, action))
    for name in ("__getstate__", "__setstate__") if slots else ():
        if name not in vars(cls):
            setattr(cls, name, getattr(_Frozen, name))


def _guard(cls: Any, method: str, action: str) -> Callable[..., None]:
    """Return the method of a frozen class that refuses an action on fields.

    An instance of a subclass that is not a dataclass may have other attributes.
    """
    names = {field.name for field in fields(cls)}

    def guard(self: object, name: str, *value: object) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot {action} field {name!r}")
        getattr(super(cls, self), method)(name, *value)

    guard.__name__, guard.__qualname__ = method, f"{cls.__qualname__}.{method}"
    return guard


class _Factory:
    """Default of a parameter whose field has a default factory."""

    def __repr__(self) -> str:
        return "<factory>"


def _init(cls: Any) -> Any:
    frozen = cls.__dataclass_params__.frozen
    values = {"__set": object.__setattr__, "__factory": _Factory()}
    parameters, keyword_only, body = ["self"], ["*"], []
    for field in fields(cls):
        name = value = field.name
        default = ""
        if field.default_factory is not MISSING:
            values[f"__new_{name}"] = field.default_factory
            value = f"__new_{name}()" + f" if {name} is __factory else {name}" * field.init
            default = "=__factory"
        elif field.default is not MISSING:
            values[f"__default_{name}"] = field.default
            value = name if field.init else f"__default_{name}"
            default = f"=__default_{name}"
        if field.init:
            (keyword_only if field.kw_only else parameters).append(name + default)
        if field.init or default:
            body.append(f"__set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    if len(keyword_only) > 1:
        parameters += keyword_only
    method = _compiled(cls, "__init__", parameters, body or ["pass"], **values)
    method.__annotations__ = {f.name: f.type for f in fields(cls) if f.init} | {"return": None}
    return method


def _repr(cls: Any) -> Any:
    shown = ", ".join(f"{f.name}={{self.{f.name}!r}}" for f in fields(cls) if f.repr)
    body = [f'return f"{{self.__class__.__qualname__}}({shown})"']
    return recursive_repr()(_compiled(cls, "__repr__", ["self"], body))


def _eq(cls: Any) -> Any:
    names = [field.name for field in fields(cls) if field.compare]
    body = [
        "if other.__class__ is self.__class__:",
        f"    return {_tuple('self', names)} == {_tuple('other', names)}",
        "return NotImplemented",
    ]
    return _compiled(cls, "__eq__", ["self", "other"], body)


def _hash(cls: Any) -> Any:
    names = [f.name for f in fields(cls) if (f.compare if f.hash is None else f.hash)]
    return _compiled(cls, "__hash__", ["self"], [f"return hash({_tuple('self', names)})"])


def _tuple(instance: str, names: Sequence[str]) -> str:
    return "(" + "".join(f"{instance}.{name}, " for name in names) + ")"


_COMPILERS = {"__init__": _init, "__repr__": _repr, "__eq__": _eq, "__hash__": _hash}


def _compiled(
    cls: type, name: str, parameters: Sequence[str], body: Sequence[str], **values: Any
) -> Any:
    """Compile a method of `cls`, whose code may name `values`."""
    method = f"def {name}({', '.join(parameters)}):\n" + "".join(f"  {line}\n" for line in body)
    source = f"def make({', '.join(values)}):\n {method} return {name}\n"
    module = sys.modules.get(cls.__module__)  # where the names in annotations are found
    made: dict[str, Any] = {}
    exec(source, vars(module) if module else {}, made)
    compiled = made["make"](**values)
    compiled.__qualname__ = f"{cls.__qualname__}.{name}"
    return compiled
