"""How the console lists, filters and shows the rows of a kind, and which actions it offers for them.

`relay.ops.console.catalogue` has all kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from relay.domain.errors import InvalidRequest
from relay.domain.identity import check_id
from relay.domain.incidents import IncidentStatus
from relay.ops import rows
from relay.ops.api import models


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What an operator may do to rows of a kind.

    ``statuses``: the states that a filter may find. ``fits``: the states in which a single row may be chosen.
    ``noted``: a note is needed. ``narrowed``: a filter or ids must name the rows; all is not allowed. ``harsh``:
    it gives a row up. ``done``: what happens to a row, in words. ``undo``: the action that takes it back.
    """

    name: str
    label: str
    done: str
    do: type[rows.Act]
    statuses: Sequence[str]
    fits: Sequence[str]
    about: str
    noted: bool = False
    narrowed: bool = False
    harsh: bool = False
    undo: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a filter. ``options``: the values that it may have, if they are known."""

    name: str
    label: str
    hint: str = ""
    options: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of rows. ``path``: the path of its pages. ``usual``: the states that a list shows by default.

    ``id``: the type of ids; `str`: any text that `check_id` reads. ``order``: the column that orders pages.
    ``body``: the column of the payload; of bytes, if it is not ``payload``. ``group``: counts rows, of the states
    ``grouped``, by the codes of their reasons, for which lists have the filter ``by``.
    """

    path: str
    title: str
    noun: str
    about: str
    find: type[rows.Find]
    get: type[rows.Get]
    asked: type[models.EventsAsked | models.MessagesAsked | models.LettersAsked | models.TasksAsked]
    filter: type[models.EventsFilter | models.MessagesFilter | models.LettersFilter | models.TasksFilter]
    id: type[Any]
    statuses: Sequence[str]
    usual: Sequence[str]
    order: str
    fields: Sequence[Field]
    actions: Sequence[Action]
    empty: str
    body: str = "payload"
    group: type[rows.GroupIncidents | rows.GroupMessages] | None = None
    grouped: Sequence[str] = ()
    by: str = "error"

    def wanted(self, asked: BaseModel, statuses: Sequence[str]) -> Any:
        """The filter of the rows in these states, as queries take it."""
        states: Sequence[Any] = statuses
        if self.find is rows.FindIncidents:
            states = [IncidentStatus(it) for it in statuses]
        return asked.wanted(list(states))  # type: ignore[attr-defined]

    def key(self, text: str) -> Any:
        """Read the id of a row. Raises InvalidRequest, and InvalidKey."""
        if self.id is str:
            return check_id(text, "id").value
        try:
            return TypeAdapter(self.id).validate_python(text)
        except ValidationError as error:
            raise InvalidRequest(error.errors()[0]["msg"], field="id") from None
