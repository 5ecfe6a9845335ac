"""`zinc.core.dataclass` held against the decorator of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import pydoc
import threading
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pytest

from zinc.core.dataclass import dataclass

T = TypeVar("T")
METHODS = ("__init__", "__repr__", "__eq__", "__hash__")


class Named(Protocol):
    name: str

    def greet(self) -> str:
        """Return a greeting."""
        return f"Hello {self.name}"


class Parsed:
    """Base with a constructor and a text of its own."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return "parsed"


def classes(dataclass: Callable[..., Any]) -> dict[str, tuple[type, list[Callable[[Any], Any]]]]:
    """Return classes made with `dataclass`, and calls that make their instances or fail to."""

    @dataclass
    class Plain:
        """A class that can be changed and has no hash."""

        x: int
        y: list[int] = field(default_factory=list)

    @dataclass(frozen=True, slots=True)
    class Point:
        """A class with slots that cannot be changed."""

        x: int
        y: str = "y"
        unit: ClassVar[str] = "m"

    @dataclass(frozen=True, slots=True)
    class Empty:
        """A class without fields."""

    @dataclass(frozen=True)
    class Noted:
        """A class with fields that are not compared, shown or passed."""

        x: int
        cached: int = field(default=3, compare=False)
        secret: str = field(default="", repr=False)
        shown: int = field(default=7, hash=False)
        made: list[int] = field(init=False, default_factory=list, hash=False)

    @dataclass(slots=True, eq=False)
    class Identity:
        """A class that compares by identity."""

        x: int
        kind: str = field(init=False, default="kind")

    @dataclass(frozen=True, kw_only=True)
    class Keywords:
        """A class whose arguments have names."""

        x: int = 1
        y: int

    @dataclass(frozen=True, slots=True)
    class Computed:
        """A class that fills a field in."""

        x: int
        twice: int = field(init=False)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("negative")
            object.__setattr__(self, "twice", 2 * self.x)

    @dataclass(frozen=True, slots=True)
    class Handwritten:
        """A class with methods of its own."""

        x: int

        def __init__(self, text: str) -> None:
            object.__setattr__(self, "x", int(text))

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Handwritten) and abs(self.x - other.x) < 2

        def __hash__(self) -> int:
            return 5

        def __repr__(self) -> str:
            return "by hand"

    @dataclass(frozen=True)
    class Equal:
        """A class with an __eq__, whose __hash__ is generated."""

        x: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal) and self.x == other.x

    @dataclass
    class Hashed:
        """A class with a __hash__, whose __eq__ is generated."""

        x: int

        def __hash__(self) -> int:
            return self.x

    @dataclass
    class Unhashed:
        """A class with an __eq__, which has no hash."""

        x: int

        def __eq__(self, other: object) -> bool:
            return True

    @dataclass
    class Overriding(Parsed):
        """A class with generated methods in place of its base's."""

        x: int

    @dataclass(frozen=True, slots=True)
    class Longer(Point):
        """A class with the fields of a base, one with another default."""

        y: str = "z"
        z: tuple[int, ...] = ()

    @dataclass
    class PlainLonger(Plain):
        """A class with the fields of a base."""

        z: int = 3

    @dataclass(frozen=True)
    class Box(Generic[T]):
        """A generic class."""

        value: T

    @dataclass(frozen=True, slots=True)
    class Person(Named):
        """A class that implements a protocol."""

        name: str

    class Subclass(Noted):
        """A class that is not a dataclass, whose base is frozen."""

    @dataclass
    class Nested:
        """A class that can contain itself."""

        inner: Any

    return {
        "plain": (Plain, [lambda c: c(1), lambda c: c(1, [2]), lambda c: c(), lambda c: c(z=1)]),
        "point": (
            Point,
            [lambda c: c(1), lambda c: c(1, "y"), lambda c: c(x=2), lambda c: c(1, 2, 3)],
        ),
        "empty": (Empty, [lambda c: c(), lambda c: c(), lambda c: c(1)]),
        "noted": (
            Noted,
            [
                lambda c: c(1),
                lambda c: c(1, 4),
                lambda c: c(1, secret="s"),
                lambda c: c(1, shown=8),
                lambda c: c(1, made=[]),
            ],
        ),
        "identity": (Identity, [lambda c: c(1), lambda c: c(1), lambda c: c(1, "kind")]),
        "keywords": (Keywords, [lambda c: c(y=1), lambda c: c(y=1, x=1), lambda c: c(1, 2)]),
        "computed": (Computed, [lambda c: c(1), lambda c: c(-1), lambda c: c(1, 2)]),
        "handwritten": (Handwritten, [lambda c: c("1"), lambda c: c("2"), lambda c: c("9")]),
        "equal": (Equal, [lambda c: c(1), lambda c: c(1), lambda c: c(2)]),
        "hashed": (Hashed, [lambda c: c(1), lambda c: c(1), lambda c: c(2)]),
        "unhashed": (Unhashed, [lambda c: c(1), lambda c: c(2)]),
        "overriding": (Overriding, [lambda c: c(1), lambda c: c(text="t")]),
        "longer": (Longer, [lambda c: c(1), lambda c: c(1, "z", ()), lambda c: c(1, "y", (1,))]),
        "plain longer": (PlainLonger, [lambda c: c(1), lambda c: c(1, [], 3), lambda c: c()]),
        "box": (Box, [lambda c: c(1), lambda c: c[int](1), lambda c: c("1")]),
        "person": (Person, [lambda c: c("A"), lambda c: c("A"), lambda c: c()]),
        "subclass": (Subclass, [lambda c: c(1), lambda c: c(1), lambda c: c()]),
        "nested": (Nested, [lambda c: c(c(1)), lambda c: c(None), lambda c: _cycle(c)]),
    }


def _cycle(cls: type) -> Any:
    made = cls(None)
    made.inner = made
    return made


STDLIB = classes(dataclasses.dataclass)
NAMES = sorted(STDLIB)


def outcome(action: Callable[[], Any]) -> Any:
    """Return the result of `action`, or the type and text of its error."""
    try:
        return action()
    except Exception as error:
        return type(error), str(error)


def instances(name: str, dataclass: Callable[..., Any]) -> list[Any]:
    """Return the instances of a new class, with the errors of calls that fail."""
    cls, calls = classes(dataclass)[name]
    return [outcome(lambda call=call: call(cls)) for call in calls]


def both(name: str, observe: Callable[[Any], Any]) -> None:
    """Compare what `observe` returns for each instance of a class, or the text of its error."""
    ours, theirs = instances(name, dataclass), instances(name, dataclasses.dataclass)
    for mine, other in zip(ours, theirs, strict=True):
        assert isinstance(mine, tuple) == isinstance(other, tuple)
        if isinstance(other, tuple):  # the constructor's error
            assert mine == other
        else:
            assert outcome(lambda mine=mine: observe(mine)) == outcome(
                lambda other=other: observe(other)
            )


@pytest.mark.parametrize("name", NAMES)
def test_instances_are_printed_alike(name: str) -> None:
    both(name, repr)


@pytest.mark.parametrize("name", NAMES)
def test_instances_are_equal_and_hashed_alike(name: str) -> None:
    def relations(made: list[Any]) -> list[Any]:
        made = [x for x in made if not isinstance(x, tuple)]
        pairs = [(a, b) for a in made for b in (*made, None, 1)]
        equal = [outcome(lambda a=a, b=b: a == b) for a, b in pairs]
        hashes = [outcome(lambda a=a, b=b: hash(a) == hash(b)) for a, b in pairs]
        return [equal, [a != b for a, b in pairs] if name != "nested" else [], hashes]

    assert relations(instances(name, dataclass)) == relations(
        instances(name, dataclasses.dataclass)
    )


@pytest.mark.parametrize("name", [name for name in NAMES if name != "empty"])
def test_instances_are_changed_and_replaced_alike(name: str) -> None:
    def change(made: Any) -> Any:
        first = fields(made)[0].name
        replaced = outcome(lambda: repr(replace(made, **{first: 9})))
        changes = [
            outcome(lambda: setattr(made, first, 4)),
            repr(made),
            outcome(lambda: delattr(made, first)),
            hasattr(made, first),
        ]
        return [is_dataclass(made), replaced, changes]

    both(name, change)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "nested"])
def test_instances_are_converted_and_copied_alike(name: str) -> None:
    both(name, asdict)
    both(name, lambda made: repr(copy.copy(made)))
    both(name, lambda made: repr(copy.deepcopy(made)))


def manual(cls: type) -> list[str]:
    """Return the lines that `help` prints, but for __setattr__ and __delattr__ and their texts."""
    lines = pydoc.plain(pydoc.render_doc(cls)).splitlines()
    return [line for line in lines if "attr__" not in line and "Implement" not in line]


@pytest.mark.parametrize("name", NAMES)
def test_classes_are_described_alike(name: str) -> None:
    ours, theirs = classes(dataclass)[name][0], classes(dataclasses.dataclass)[name][0]
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__match_args__ == theirs.__match_args__
    assert ours.__doc__ == theirs.__doc__
    assert ours.__qualname__ == theirs.__qualname__
    assert getattr(ours, "__slots__", None) == getattr(theirs, "__slots__", None)
    assert [repr(f) for f in fields(ours)] == [repr(f) for f in fields(theirs)]
    assert ours.__dataclass_params__.frozen == theirs.__dataclass_params__.frozen
    for method in METHODS:
        mine, other = getattr(ours, method), getattr(theirs, method)
        assert (method in vars(ours)) == (method in vars(theirs)), method
        assert getattr(mine, "__qualname__", None) == getattr(other, "__qualname__", None)
        assert getattr(mine, "__annotations__", None) == getattr(other, "__annotations__", None)
    assert manual(ours) == manual(theirs)


def test_patterns_match_the_fields() -> None:
    match Pair(1, Pair(2, 3)):
        case Pair(1, Pair(2, z)):
            assert z == 3
        case _:
            pytest.fail("no match")


@dataclass(frozen=True, slots=True)
class Pair:
    left: Any
    right: Any = None


@dataclass(frozen=True, slots=True)
class Triple(Pair):
    third: int = 3


@dataclass(slots=True)
class Changing:
    x: int


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", [Pair(1, Pair("b")), Triple(1, third=4), Changing(2)], ids=repr)
def test_instances_are_pickled(value: Any, protocol: int) -> None:
    assert pickle.loads(pickle.dumps(value, protocol)) == value


def test_methods_are_generated_when_they_are_first_used() -> None:
    @dataclass(frozen=True, slots=True)
    class Used:
        x: int

    assert not [m for m in METHODS if inspect.isfunction(vars(Used)[m])]
    Used(1)
    assert [m for m in METHODS if inspect.isfunction(vars(Used)[m])] == ["__init__"]
    {Used(1): 1}
    assert [m for m in METHODS if inspect.isfunction(vars(Used)[m])] == ["__init__", "__hash__"]
    assert Used(1) == Used(1)
    assert repr(Used(1)).endswith("Used(x=1)")
    assert [m for m in METHODS if inspect.isfunction(vars(Used)[m])] == list(METHODS)


def test_a_subclass_is_instantiated_before_its_base() -> None:
    for cls in (classes(dataclass)["longer"][0], classes(dataclass)["subclass"][0]):
        made = cls(1)
        base = cls.__mro__[1]
        assert base(1) != made
        assert base(1) == base(1)
        assert type(made) is cls


def test_a_base_calls_and_is_called_with_super() -> None:
    @dataclass
    class Base:
        x: int

    class Derived(Base):
        def __init__(self) -> None:
            super().__init__(5)

        def __repr__(self) -> str:
            return f"<{super().__repr__()}>"

    assert repr(Derived()).endswith("Derived(x=5)>")
    Base.__init__(made := Derived(), 6)
    assert made.x == 6


@pytest.mark.parametrize("outer", [dataclass, dataclasses.dataclass])
@pytest.mark.parametrize("inner", [dataclass, dataclasses.dataclass])
def test_either_decorator_inherits_from_the_other(
    inner: Callable[..., Any], outer: Callable[..., Any]
) -> None:
    @inner(frozen=True)
    class Base:
        x: int

    @outer(frozen=True)
    class Derived(Base):
        y: int = 2

    assert (Derived(1).x, Derived(1).y) == (1, 2)
    assert Derived(1) == Derived(1, 2)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        Derived(1).x = 3
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'other'"):
        del Derived(1).other
    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):
        outer(type("Changing", (Base,), {}))

    @inner
    class Changing:
        x: int

    with pytest.raises(TypeError, match="cannot inherit frozen dataclass from a non-frozen one"):
        outer(frozen=True)(type("Fixed", (Changing,), {}))


def test_a_subclass_of_a_frozen_class_can_have_other_attributes() -> None:
    for make in (dataclass, dataclasses.dataclass):
        made = instances("subclass", make)[0]
        made.other = 1
        assert made.other == 1
        del made.other
        assert not hasattr(made, "other")
        with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
            made.x = 1


def test_a_frozen_class_has_no_attributes_but_its_fields() -> None:
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'other'"):
        Pair(1).other = 2  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'other'"):
        del Pair(1).other  # type: ignore[attr-defined]


def test_wrong_declarations_are_refused() -> None:
    with pytest.raises(TypeError, match="defines __setattr__"):
        dataclass(frozen=True)(type("Set", (), {"__setattr__": object.__setattr__}))
    with pytest.raises(TypeError, match="order"):
        dataclass(order=True)(type("Ordered", (), {}))
    with pytest.raises(ValueError, match="mutable default"):
        dataclass(type("Default", (), {"__annotations__": {"x": "list"}, "x": []}))
    late = dataclass(type("Late", (), {"__annotations__": {"x": "int", "y": "int"}, "x": 1}))
    with pytest.raises(SyntaxError, match=r"non-default argument|without a default"):
        late(1, 2)


def test_a_class_without_a_docstring_is_described_by_its_name() -> None:
    assert Pair.__doc__ == "Pair"


def test_threads_can_make_the_first_instances_together() -> None:
    for _ in range(20):
        cls = classes(dataclass)["point"][0]
        start, made = threading.Barrier(4), []

        def make(cls: type = cls, start: Any = start, made: list[Any] = made) -> None:
            start.wait()
            value = cls(1)
            made.append((value, hash(value), repr(value), value == cls(1)))

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(made)) == 1
        assert made[0][3]
        assert len(made) == 4
