"""Reads what a browser sends: filters in the address, and forms."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, TypeVar, get_origin
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError

from relay.domain.errors import InvalidRequest

Model = TypeVar("Model", bound=BaseModel)
#: A time as a duration before now, which stays right in a bookmark.
_AGO: Final = re.compile(r"([0-9]{1,5})(m|h|d)")
_TIMES: Final = {"since", "until"}
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}
#: A form has at most so many fields.
_MAX_FIELDS: Final = 2_000
Pairs = Iterable[tuple[str, str]]


def read(model: type[Model], pairs: Pairs) -> Model:
    """Read a model from names and texts. An empty text, as from an empty field of a form, counts as not given.

    Times may be durations, such as ``6h``; without a zone they are UTC. Raises InvalidRequest, naming the first
    field that is wrong.
    """
    found: dict[str, list[str]] = {}
    for name, text in pairs:
        if stripped := text.strip():
            found.setdefault(name, []).append(stripped)
    lists = {it.alias or name for name, it in model.model_fields.items() if get_origin(it.annotation) is list}
    values: dict[str, Any] = {name: texts if name in lists else texts[-1] for name, texts in found.items()}
    for name in _TIMES & {*values}:
        values[name] = absolute(values[name])
    return checked(model, values)


def checked(model: type[Model], values: Mapping[str, Any]) -> Model:
    """Return the model of these values. Raises InvalidRequest, naming the first field that is wrong."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or None
        hint = "write 6h, 90d or 2026-01-31T03:00Z" if field in _TIMES else None
        raise InvalidRequest(first["msg"].removeprefix("Value error, "), field=field, hint=hint) from None


def absolute(text: str) -> str:
    """A duration before now, such as ``6h``, as a time; a time without a zone is UTC; other text as it is."""
    if (found := _AGO.fullmatch(text)) is None:
        with suppress(ValueError):
            at = datetime.fromisoformat(text)
            return at.isoformat() if at.tzinfo else at.replace(tzinfo=UTC).isoformat()
        return text
    # To the second: all who ask within one ask the same.
    now = datetime.now(UTC).replace(microsecond=0)
    return (now - timedelta(**{_UNITS[found[2]]: int(found[1])})).isoformat()


async def _form(request: Request) -> list[tuple[str, str]]:
    try:
        return parse_qsl((await request.body()).decode(), max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise InvalidRequest("the form cannot be read") from None


#: The fields of a form that was sent, as names and texts.
Form = Annotated[list[tuple[str, str]], Depends(_form)]
