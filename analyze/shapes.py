"""What each field of an event may hold and as which column it is stored; knows no line and no file."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Meta

from schemas.events import BODIES, BY_KIND, Envelope

NULL = type(None)
INT64_MAX = 2**63 - 1
MAX_SECONDS = 9e9
"""Beyond it a double doesn't hold whole microseconds any more."""

_SQL: dict[type, str] = {
    int: "BIGINT",
    float: "DOUBLE",
    str: "VARCHAR",
    bool: "BOOLEAN",
    dict: "JSON",
    list: "BIGINT[]",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the contract."""

    name: str
    base: type
    nullable: bool
    required: bool
    minimum: float | None = None
    min_length: int = 0
    pattern: re.Pattern[str] | None = None
    choices: frozenset[str] | None = None
    inner: frozenset[type] | None = None
    """Types of what is in an object or a list; None where anything may be in it."""
    doc: str = ""

    @property
    def sql(self) -> str:
        """Return the type of its column."""
        return "DOUBLE[]" if self.base is list and not self.whole_items else _SQL[self.base]

    @property
    def whole_items(self) -> bool:
        """Say whether a list has whole numbers alone."""
        return self.inner == frozenset({int})

    @property
    def maximum(self) -> float | None:
        """Return the most a number may be; None for anything that its column holds."""
        timed = self.base is float and (self.name == "t" or self.name.endswith("_s"))
        return MAX_SECONDS if timed else None

    @property
    def types(self) -> frozenset[type]:
        """Return the Python types its values decode to; a whole number may stand for a float."""
        own = {int, float} if self.base is float else {self.base}
        return frozenset(own | ({NULL} if self.nullable else set()))

    def fault(self, value: Any) -> str | None:
        """Return what is wrong with a value, or None."""
        if type(value) not in self.types:
            return f"{self.name} is {_name(value)}, not {self._expected()}"
        if value is None:
            return None
        if self.base is int and not -INT64_MAX <= value <= INT64_MAX:
            return f"{self.name} is {value}, beyond 64 bits"
        if self.base is float and type(value) is int and abs(value) >= 2**1023:
            return f"{self.name} is too large for a double"
        if self.minimum is not None and value < self.minimum:
            return f"{self.name} is {value}, less than {self.minimum:g}"
        if self.maximum is not None and value > self.maximum:
            return f"{self.name} is {value}, more than {self.maximum:g}"
        if self.min_length and not value:
            return f"{self.name} is empty"
        if self.pattern and not self.pattern.search(value):
            return f"{self.name} is {value[:20]!r}, not of the form {self.pattern.pattern}"
        if self.choices is not None and value not in self.choices:
            return f"{self.name} is {value[:20]!r}, not one of {', '.join(sorted(self.choices))}"
        return self._inner_fault(value)

    def _inner_fault(self, value: Any) -> str | None:
        if self.base is list:
            for item in value:
                if type(item) not in (self.inner or ()) or (type(item) is int and abs(item) > INT64_MAX):
                    expected = "a whole number" if self.whole_items else "a number"
                    return f"{self.name} holds {_name(item)}, not {expected}"
        elif self.base is dict and self.inner is not None:
            for key, item in value.items():
                if type(item) not in self.inner:
                    return f"{self.name}.{key} is {_name(item)}"
        return None

    def _expected(self) -> str:
        return _EXPECTED[self.base] + (" or null" if self.nullable else "")


_EXPECTED: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def _name(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return f"{value}"
    return "text" if isinstance(value, str) else "a list" if isinstance(value, list) else "an object"


def _strip(hint: Any) -> tuple[Any, list[Meta], bool]:
    """Return the bare type, everything said about it, and whether null is allowed."""
    metas: list[Meta] = []
    nullable = False
    while True:
        if get_origin(hint) is Annotated:
            hint, *more = get_args(hint)
            metas += [m for m in more if isinstance(m, Meta)]
        elif get_origin(hint) in (Union, types.UnionType) and NULL in get_args(hint):
            nullable = True
            (hint,) = (arg for arg in get_args(hint) if arg is not NULL)
        else:
            return hint, metas, nullable


def _inner_types(hint: Any) -> frozenset[type] | None:
    value = get_args(hint)[-1]
    if value is Any:
        return None
    options = get_args(value) if get_origin(value) in (Union, types.UnionType) else (value,)
    options = tuple(get_args(one)[0] if get_origin(one) is Annotated else one for one in options)
    return frozenset(options) | (frozenset({int}) if float in options else frozenset())


def _choices_doc(bare: Any) -> str:
    """Return what can be said of a field that the contract gives nothing but its words."""
    return f"one of: {', '.join(get_args(bare))}" if get_origin(bare) is Literal else ""


def _field(name: str, hint: Any, *, required: bool) -> Field:
    bare, metas, nullable = _strip(hint)
    origin = get_origin(bare)
    minimum = next((m.ge for m in metas if m.ge is not None), None)
    pattern = next((m.pattern for m in metas if m.pattern), None)
    return Field(
        name=name,
        base=str if origin is Literal else origin or bare,
        nullable=nullable,
        required=required,
        minimum=minimum,
        min_length=next((m.min_length for m in metas if m.min_length), 0) or 0,
        pattern=re.compile(pattern) if pattern else None,
        choices=frozenset(get_args(bare)) if origin is Literal else None,
        inner=_inner_types(bare) if origin in (dict, list) else None,
        doc=next((m.description for m in metas if m.description), "") or _choices_doc(bare),
    )


def _fields(cls: type[Any]) -> Iterable[Field]:
    hints = get_type_hints(cls, include_extras=True)
    for f in fields(cls):
        # A finished span without its duration says nothing, whatever the default.
        required = f.default is f.default_factory is MISSING or f.name == "duration_s"
        yield _field(f.name, hints[f.name], required=required)


@cache
def envelope() -> dict[str, Field]:
    """Return the fields in front of every event, by name."""
    return {f.name: f for f in _fields(Envelope)}


@cache
def of_kind(kind: str) -> dict[str, Field]:
    """Return the fields of a kind, by name, envelope first; of an unknown kind the envelope alone."""
    body = BY_KIND.get(kind)
    return envelope() | ({f.name: f for f in _fields(body)} if body else {})


@cache
def columns() -> dict[str, Field]:
    """Return every field of every kind, by name: one name has one type everywhere."""
    every: dict[str, Field] = {}
    for body in BODIES:
        for name, field in of_kind(body.kind).items():
            every.setdefault(name, field)
    return every
