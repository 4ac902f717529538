"""Reads what a browser sends: filters in the address, and forms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, TypeVar, get_origin
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError

from relay.domain.errors import InvalidRequest
from relay.domain.moments import absolute

Model = TypeVar("Model", bound=BaseModel)
_TIMES: Final = {"since", "until"}
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


async def _form(request: Request) -> list[tuple[str, str]]:
    try:
        return parse_qsl((await request.body()).decode(), max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise InvalidRequest("the form cannot be read") from None


#: The fields of a form that was sent, as names and texts.
Form = Annotated[list[tuple[str, str]], Depends(_form)]
