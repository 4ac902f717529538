"""Compares payloads with what tests expect, and says what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypeVar

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

Item = TypeVar("Item")

_SHOWN: Final = 20


def plain(value: object) -> Any:
    """Return a value as it is after JSON: a UUID is its text."""
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else to_jsonable_python(value)


def holds(value: Any, expected: Any) -> bool:
    """Whether a value has what is expected. A mapping may hold more; everything else is equal."""
    if isinstance(expected, Mapping) and isinstance(value, Mapping):
        return all(name in value and holds(value[name], part) for name, part in expected.items())
    return bool(value == expected)


def check_columns(row: type, columns: Iterable[str]) -> None:
    """Raise TypeError for a column that rows do not have."""
    names = [field.name for field in fields(row)]
    for name in columns:
        if name not in names:
            raise TypeError(f"{name!r} is no column; known: {', '.join(names)}")


def expect(what: str, items: Sequence[Item], times: int | None, fits: Callable[[Item], bool]) -> list[Item]:
    """Return the items that fit. Raises AssertionError unless they are ``times``, or any if it is None."""
    __tracebackhide__ = True
    fitting = [item for item in items if fits(item)]
    if len(fitting) == times or (times is None and fitting):
        return fitting
    expected = "at least once" if times is None else f"{times} times" if times != 1 else "once"
    lines = [f"  {item}" for item in items[:_SHOWN]] or ["  nothing"]
    if len(items) > _SHOWN:
        lines.append(f"  … and {len(items) - _SHOWN} more")
    raise AssertionError(
        "\n".join((f"expected {expected}, found {len(fitting)} times: {what}", "committed were:", *lines))
    )
