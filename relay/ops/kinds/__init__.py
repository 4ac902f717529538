"""Every kind of rows that operators list, look at and act on. A new kind is a description here, and its store."""

from __future__ import annotations

from typing import Final

from relay.domain.errors import NotUndoable
from relay.ops.kinds.dead_letters import DEAD_LETTERS
from relay.ops.kinds.events import EVENTS
from relay.ops.kinds.inbox import MESSAGES
from relay.ops.kinds.model import Action, Argument, Column, Filter, Kind, Listing, Order
from relay.ops.kinds.others import (
    ARCHIVED,
    AUDIT,
    CONTROLS,
    DEAD_JOBS,
    JOBS,
    OTHERS,
    PARKED,
    PERSONS,
    REPLAYS,
    RETENTION,
)
from relay.ops.kinds.tasks import TASKS

#: By the path that addresses have.
KINDS: Final = {kind.path: kind for kind in (EVENTS, MESSAGES, DEAD_LETTERS, TASKS)}


def act_of(word: str) -> tuple[Kind, Action] | None:
    """The kind and action that the audit log calls by a word, such as ``dlq.discard``; None for any other act."""
    room, _, name = word.partition(".")
    kind = next((it for it in KINDS.values() if it.store.kind == room), None)
    found = next((it for it in kind.actions if it.name == name), None) if kind else None
    return (kind, found) if kind and found else None


def undoing(word: str) -> tuple[Kind, Action]:
    """The kind, and the action on its rows that takes back what the audit log calls by a word.

    Raises NotUndoable if there is none.
    """
    found = act_of(word)
    if found is None or not found[1].undo:
        raise NotUndoable(f"{word} cannot be undone: it has had effects that nothing takes back")
    kind, action = found
    return kind, kind.action(action.undo)


__all__ = [
    "ARCHIVED",
    "AUDIT",
    "CONTROLS",
    "DEAD_JOBS",
    "DEAD_LETTERS",
    "EVENTS",
    "JOBS",
    "KINDS",
    "MESSAGES",
    "OTHERS",
    "PARKED",
    "PERSONS",
    "REPLAYS",
    "RETENTION",
    "TASKS",
    "Action",
    "Argument",
    "Column",
    "Filter",
    "Kind",
    "Listing",
    "Order",
    "act_of",
    "undoing",
]
