"""Every kind of rows that operators list, look at and act on. A new kind is a description here, and its store."""

from __future__ import annotations

from typing import Final

from relay.ops.kinds.dead_letters import DEAD_LETTERS
from relay.ops.kinds.events import EVENTS
from relay.ops.kinds.inbox import MESSAGES
from relay.ops.kinds.model import Action, Argument, Column, Filter, Kind, Listing
from relay.ops.kinds.others import ARCHIVED, AUDIT, CONTROLS, DEAD_JOBS, JOBS, OTHERS, PARKED, REPLAYS
from relay.ops.kinds.tasks import TASKS

#: By the path that addresses have.
KINDS: Final = {kind.path: kind for kind in (EVENTS, MESSAGES, DEAD_LETTERS, TASKS)}

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
    "REPLAYS",
    "TASKS",
    "Action",
    "Argument",
    "Column",
    "Filter",
    "Kind",
    "Listing",
]
