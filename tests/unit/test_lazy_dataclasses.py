"""Dataclasses that are generated at their first use behave like those of the standard library."""

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
import sys
import threading
from dataclasses import field

import pytest

import ramet
from ramet.protocol.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """A place."""

    x: int
    y: int = 2
    tags: tuple[str, ...] = ()
    seen: list[int] = field(default_factory=list, compare=False)

    def length(self) -> int:
        return self.x + self.y


@dataclass(frozen=True, slots=True)
class NamedPoint(Point):
    name: str = ""

    def __repr__(self) -> str:
        return f"<NamedPoint {self.name}>"


@dataclass(slots=True)
class Counter:
    count: int = 0
    doubled: int = field(init=False)
    begun: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        self.doubled = self.count * 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    first: int = 1
    second: int


def test_fields_defaults_and_methods_are_those_of_a_dataclass() -> None:
    point = Point(1)
    assert (point.x, point.y, point.tags, point.seen, point.length()) == (1, 2, (), [], 3)
    assert Point(1).seen is not point.seen
    assert repr(point) == "Point(x=1, y=2, tags=(), seen=[])"
    assert point == Point(x=1, seen=[5]) != Point(2)
    assert hash(point) == hash(Point(1))
    assert len({point, Point(1), Point(2)}) == 2
    assert dataclasses.replace(point, y=7).y == 7
    assert dataclasses.asdict(point) == {"x": 1, "y": 2, "tags": (), "seen": []}
    assert Point.__doc__ == "A place."


def test_a_frozen_one_cannot_be_changed_and_has_no_other_attributes() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Point(1).x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del Point(1).x
    assert not hasattr(Point(1), "__dict__")


def test_one_that_can_change_is_not_hashable_and_runs_what_follows_its_init() -> None:
    counter = Counter(4)
    assert (counter.doubled, counter.begun) == (8, True)
    counter.count = 5
    assert counter != Counter(4)
    with pytest.raises(TypeError, match="unhashable"):
        hash(counter)


def test_a_subclass_has_the_fields_of_both_and_keeps_its_own_methods() -> None:
    named = NamedPoint(1, name="home")
    assert repr(named) == "<NamedPoint home>"
    assert [each.name for each in dataclasses.fields(NamedPoint)] == ["x", "y", "tags", "seen", "name"]
    assert named != Point(1)


def test_keywords_only() -> None:
    assert Asked(second=3) == Asked(first=1, second=3)
    with pytest.raises(TypeError):
        Asked(1, 3)  # type: ignore[call-arg]


def test_copies_and_pickles_are_equal() -> None:
    point = Point(1, tags=("a",))
    assert copy.copy(point) == copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point


def test_a_class_that_was_never_used_can_be_unpickled() -> None:
    @dataclass(frozen=True, slots=True)
    class Fresh:
        number: int

    made = Fresh.__new__(Fresh)
    made.__setstate__([5])  # type: ignore[attr-defined]
    assert made == Fresh(5)


def test_a_class_that_was_never_used_can_be_inspected() -> None:
    @dataclass(frozen=True, slots=True)
    class Fresh:
        number: int
        text: str = "x"

    assert list(inspect.signature(Fresh).parameters) == ["number", "text"]
    assert str(Fresh.__doc__).startswith("Fresh(number: ")
    assert dataclasses.is_dataclass(Fresh)
    match Fresh(5):
        case Fresh(number, "x"):
            assert number == 5
        case _:
            raise AssertionError("it does not match")


def test_threads_that_use_it_first_at_once_all_succeed() -> None:
    for _ in range(20):

        @dataclass(frozen=True, slots=True)
        class Fresh:
            number: int
            kept: list[int] = field(default_factory=list)

        made: list[object] = []
        barrier = threading.Barrier(8)

        def make(into: list[object] = made, together: threading.Barrier = barrier, kind: type = Fresh) -> None:
            together.wait(10)
            into.append(kind(number=1))

        threads = [threading.Thread(target=make) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert made == [Fresh(1)] * 8


def test_every_one_of_the_package_can_be_generated() -> None:
    """The standard library refuses a wrong one (a field without a default behind one that has it) at the import."""
    for module in pkgutil.walk_packages(ramet.__path__, "ramet."):
        below = module.name.startswith(("ramet.protocol", "ramet.engine", "ramet.freezing", "ramet.isolation"))
        if below and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    classes = {
        kind
        for name, module in sys.modules.items()
        if name.startswith("ramet.")
        for kind in vars(module).values()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind)
    }
    assert len(classes) > 100
    for kind in classes:
        assert inspect.signature(kind) is not None
