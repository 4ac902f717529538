"""The rows that were counted for an act: kept when they are counted, and the only ones that the act changes.

So what arrives between the question and the act is left, and an act is done once, however often it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from relay.bus import Command, QueryBus, Result
from relay.domain.errors import InvalidRequest, SelectionUsed
from relay.domain.operators import Selected
from relay.ops.kinds import Action, Kind, Listing
from relay.ops.requests import GetSelection, KeepSelection


class Desk(Protocol):
    """Asks and acts: the buses of an operator's face."""

    @property
    def queries(self) -> QueryBus:
        """The bus of questions."""

    async def do(self, command: Command[Any]) -> Result[Any]:
        """Carry out a command."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Rows for an act, ``ids`` None before they are counted.

    ``filter`` and ``states``: how they are found; ``filter`` None for ids that were chosen.
    """

    ids: Sequence[Any] | None
    filter: Mapping[str, Any] | None
    states: Sequence[str]


async def keep(
    desk: Desk,
    context: str,
    kind: Listing,
    action: Action,
    ids: Sequence[Any] | None,
    wanted: Mapping[str, Any] | None,
) -> UUID:
    """Keep which rows were counted; returns their name. ``wanted``: how they were found, as JSON."""
    rows = None if ids is None else tuple(map(str, ids))
    selected = Selected(kind=kind.path, action=action.name, ids=rows, wanted=wanted)
    kept: UUID = (await desk.do(KeepSelection(context=context, selected=selected))).unwrap()
    return kept


async def look_up(desk: Desk, context: str, kind: Listing, action: Action, id: UUID) -> Selected:
    """The rows that were counted for an act. Raises UnknownSelection, SelectionUsed, and InvalidRequest.

    The last is for a selection of another kind or action.
    """
    found: Selected = (await desk.queries.ask_async(GetSelection(context=context, id=id))).unwrap()
    if (found.kind, found.action) != (kind.path, action.name):
        raise InvalidRequest(f"is for {found.action} of {found.kind}", field="selection")
    if found.deed is not None:
        raise SelectionUsed(
            "this was done already",
            field="selection",
            hint=f"act {found.deed} of the audit log; to go on, count again",
        )
    return found


async def rows_of(desk: Desk, context: str, kind: Kind, action: Action, id: UUID) -> Counted:
    """The rows that were counted for an act on rows of a kind. Raises as `look_up`."""
    found = await look_up(desk, context, kind, action, id)
    wanted = found.wanted
    ids = [kind.key(it) for it in found.ids or ()]
    return Counted(ids, None if wanted is None else wanted["filter"], () if wanted is None else wanted["states"])


def as_wanted(filters: Mapping[str, Any], states: Sequence[str]) -> Mapping[str, Any]:
    """How rows were found, as it is kept."""
    return {"filter": dict(filters), "states": list(states)}
