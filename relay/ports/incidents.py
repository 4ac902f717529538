"""Where dead letters are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from relay.domain.incidents import Letter, RecordedIncident


class IncidentRecords(Protocol):
    """Where dead letters are kept as incidents."""

    async def record(self, letters: Sequence[Letter]) -> Sequence[RecordedIncident]:
        """Record dead letters; returns those that were new. Raises DatabaseUnreachable.

        It may be repeated: the id and the occurrence of its message identify a letter. A letter without its
        original takes it from the inbox, if the inbox holds it.
        """
