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


def holds(found: Any, wanted: Any) -> bool:
    """Whether ``found`` has what is wanted. A mapping may hold more; everything else is equal."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return all(name in found and holds(found[name], value) for name, value in wanted.items())
    return bool(found == wanted)


def check_columns(row: type, columns: Iterable[str]) -> None:
    """Raise TypeError for a column that rows do not have."""
    known = [field.name for field in fields(row)]
    for name in columns:
        if name not in known:
            raise TypeError(f"{name!r} is no column; known: {', '.join(known)}")


def expect(
    what: str, items: Sequence[Item], times: int | None, fits: Callable[[Item], bool], shown: Callable[[Item], str]
) -> list[Item]:
    """Return the items that fit. Raises AssertionError unless they are ``times``, or any if it is None."""
    __tracebackhide__ = True
    found = [item for item in items if fits(item)]
    if len(found) == times or (times is None and found):
        return found
    wanted = "at least once" if times is None else f"{times} times" if times != 1 else "once"
    lines = [f"  {shown(item)}" for item in items[:_SHOWN]] or ["  nothing"]
    if len(items) > _SHOWN:
        lines.append(f"  … and {len(items) - _SHOWN} more")
    raise AssertionError(
        "\n".join((f"expected {wanted}, found {len(found)} times: {what}", "committed were:", *lines))
    )
