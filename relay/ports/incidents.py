"""Where dead letters are kept."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID

from relay.domain.incidents import RecordedIncident
from relay.domain.letters import Letter

#: Where a dead row stands among the others: when it died, and its id.
DeadPlace: TypeAlias = tuple[datetime, UUID]


class Compared(NamedTuple):
    """What a comparison found: the new incidents, and where the next page begins; None after the last page."""

    recorded: Sequence[RecordedIncident]
    rest: DeadPlace | None


class IncidentRecords(Protocol):
    """Where deaths are kept as incidents. All methods may be repeated. They raise DatabaseUnreachable.

    An incident belongs to an inbox row and to the number of its death, and says what the row says. Nothing that
    a letter says can take its place.
    """

    async def record_rows(self, ids: Sequence[UUID]) -> Sequence[RecordedIncident]:
        """Record rows that are dead, or that have a verdict; returns those that were new."""

    async def record_letters(self, letters: Sequence[Letter]) -> Sequence[RecordedIncident]:
        """Record the rows that letters name; returns what was new.

        A letter that no row confirms is recorded as unconfirmed, under a key of its own. A letter that cannot be
        stored harms no other.
        """

    async def compare(self, before: DeadPlace | None, limit: int) -> Compared:
        """Compare up to ``limit`` dead rows with their incidents, the last one first, and record what is missing.

        ``before``: only rows that died before this one.
        """
