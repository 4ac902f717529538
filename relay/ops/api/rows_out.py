"""Models of rows as the API answers them, made from the columns of their kinds: a new column has its field."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Any, Final, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, create_model

from relay.domain.attempts import Attempt
from relay.ops.kinds import Column, Kind, Listing

#: The type and an example of what a column shows.
_SHOWN: Final[dict[str, tuple[Any, Any]]] = {
    "number": (int, 3),
    "size": (int, 4096),
    "time": (datetime, "2026-01-31T03:00:00Z"),
    "life": (str, "019c0000-0000-7000-8000-000000000001"),
    "id": (str, "019c0000-0000-7000-8000-000000000001"),
    "reason": (str, "timeout: no answer within 30 s"),
    "code": (str, "timeout"),
    "place": (str, "SEA_EVENTS"),
    "list": (list[Any], ["019c0000-0000-7000-8000-000000000001"]),
    "filter": (str, "order_placed"),
}
_IDS: Final[dict[type[Any], Any]] = {
    int: 1204,
    UUID: "019c0000-0000-7000-8000-000000000001",
    str: "019c0000-0000-7000-8000-000000000001",
}


class Deed(BaseModel):
    """What an operator did to a row. ``at``: when. ``actor``: who. ``action``: such as dlq.requeue."""

    at: datetime
    actor: str
    action: str
    note: str | None


@cache
def row_model(kind: Kind) -> type[BaseModel]:
    """Return the model of a row in a list."""
    return _made(_class_of(kind.one), f"A {kind.one} without its payload.", _row_fields(kind, lists=True))


@cache
def details_model(kind: Kind) -> type[BaseModel]:
    """Return the model of one row with all that is known of it."""
    more: dict[str, Any] = {
        "attempt_log": (list[Attempt], Field([], description="The attempts at it, the oldest first.")),
        "history": (list[Deed], Field(description="What operators did to it at last, oldest first.")),
        "payload": (Any, Field(None, description="The payload, if it was asked for.")),
        "payload_bytes": (int | None, Field(None, description="The size of the whole payload.")),
        "payload_cut": (bool, Field(default=False, description="Whether the payload is only its beginning.")),
        "payload_encoding": (str | None, Field(None, description="utf-8, or base64 for bytes that are no text.")),
    }
    # A field that its details lack is null in lists, or is not there at all.
    fields = _row_fields(kind, lists=False) | more
    doc = f"One {kind.one}: {kind.shows}."
    return _made(f"{_class_of(kind.one)}Details", doc, fields, ConfigDict(extra="allow"))


@cache
def list_model(kind: Kind, page: type[BaseModel]) -> type[BaseModel]:
    """Return the model of a page of rows. ``page``: what any page has."""
    items: Any = list[row_model(kind)]  # type: ignore[misc] # made at run time
    name = f"{_class_of(kind.one)}List"
    field = (items, Field(description=f"The {kind.many} of this page, the newest first."))
    model: Any = create_model(name, __base__=page, __doc__=page.__doc__, items=field)
    return model


@cache
def group_model(kind: Kind) -> type[BaseModel]:
    """Return the model of a count of rows."""
    code = "reason_code" if kind.text[1] == "reason" else "error_code"
    fields: dict[str, Any] = {
        name: _field(kind.column(name), nullable=True) for name in (code, kind.group) if name
    }
    fields["count"] = (int, Field(description="How many there are.", examples=[17]))
    return _made(f"{_class_of(kind.one)}Group", f"How many {kind.many} have the same of each.", fields)


@cache
def listing_model(listing: Listing, name: str, doc: str, *given: str, optional: bool = False) -> type[BaseModel]:
    """Return the model of an entry. ``given``: never null. ``optional``: the others may be left out."""
    fields = {it.name: _field(it, nullable=it.name not in given) for it in listing.columns}
    if optional:
        fields = {
            key: it if key in given else (it[0], Field(None, description=it[1].description))
            for key, it in fields.items()
        }
    return _made(name, doc, fields)


def _row_fields(kind: Kind, *, lists: bool) -> dict[str, Any]:
    states: Any = Literal[tuple(kind.states)]
    fields = {
        it.name: _field(it, nullable=it.show not in ("row", "state"), id=kind.id, states=states)
        for it in kind.columns
        if it.in_lists or not lists
    }
    if not lists:
        for it in kind.columns:
            if it.name in ("seq", "class"):
                fields[it.name] = (fields[it.name][0] | None, Field(None, description=_meaning(it)))
    fields["stack"] = (list[str], Field([], description="Where it failed in the program, if it said so."))
    if kind.id is str:
        fields["row_id"] = (UUID | None, Field(None, description="The key of the row, if its id is another text."))
    if kind.cursor and lists:
        fields["cursor"] = (str | None, Field(None, description="Its place in the order of the list."))
    return fields


def _field(column: Column, *, nullable: bool, id: Any = str, states: Any = str) -> tuple[Any, Any]:
    kinds = _SHOWN | {"row": (id, _IDS.get(id)), "state": (states, None)}
    type_, example = kinds.get(column.holds or column.show, (str, None))
    examples: dict[str, Any] = {} if example is None else {"examples": [example]}
    return type_ | None if nullable else type_, Field(description=_meaning(column), **examples)


def _meaning(column: Column) -> str:
    return f"{column.meaning or column.label}".rstrip(".") + "."


def _class_of(words: str) -> str:
    return "".join(it.capitalize() for it in words.split())


def _made(name: str, doc: str, fields: Any, config: ConfigDict | None = None) -> type[BaseModel]:
    return create_model(name, __config__=config, __doc__=doc, **fields)
