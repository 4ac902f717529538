"""Records deaths as incidents: whoever finds one, this is the only way (building block 2.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final
from uuid import UUID

from relay.domain.facts import FactSink, IncidentRecorded
from relay.domain.incidents import RecordedIncident
from relay.domain.letters import Letter
from relay.ports import DeadPlace, IncidentRecords

#: How many dead rows are compared with their incidents at a time.
PAGE: Final = 1_000


@dataclass(slots=True)
class RecordIncidents:
    """Records deaths, each once, and states the fact of each new incident. All methods raise DatabaseUnreachable.

    ``page``: how many dead rows a look compares.
    """

    context: str
    records: IncidentRecords
    facts: FactSink
    page: int = PAGE
    _next: DeadPlace | None = field(init=False, default=None)

    async def of_rows(self, ids: Sequence[UUID]) -> int:
        """Record inbox rows that are dead, or that have a verdict. Returns how many incidents were new."""
        return self._stated(await self.records.record_rows(ids))

    async def of_letters(self, letters: Sequence[Letter]) -> int:
        """Record the deaths that letters announce, and as unconfirmed what no row confirms. Returns the same."""
        return self._stated(await self.records.record_letters(letters))

    async def compare(self) -> int:
        """Record dead rows that have no incident. Returns the same.

        Compares the rows that died last, and with each look another page of the older ones.
        """
        compared = await self.records.compare(None, self.page)
        found = [*compared.recorded]
        if self._next is not None:
            compared = await self.records.compare(self._next, self.page)
            found += compared.recorded
        self._next = compared.rest
        return self._stated(found)

    def _stated(self, recorded: Sequence[RecordedIncident]) -> int:
        for incident in recorded:
            about = asdict(incident)
            self.facts(IncidentRecorded(context=self.context, incident_id=about.pop("id"), **about))
        return len(recorded)
