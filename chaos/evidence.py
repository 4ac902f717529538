"""The records of a run, read back and sorted by type: what the checker judges."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_args

from chaos.history import (
    Begun,
    Business,
    Call,
    ConsumerEnd,
    Diagnosed,
    Effect,
    Ended,
    Failure,
    Fault,
    Forged,
    Hostile,
    InboxState,
    Incident,
    Leftover,
    Letters,
    Lost,
    Noted,
    Operated,
    Operation,
    Orphan,
    OutboxState,
    Outcome,
    Plan,
    Posted,
    Probe,
    Produced,
    Ran,
    Receipt,
    Record,
    Sample,
    SetBack,
    Source,
    Stored,
    Strange,
    Twins,
)

_ENUMS: Final[dict[str, type[Enum]]] = {"outcome": Outcome, "plan": Plan, "source": Source}
#: Records of what the product says, which may name a source that the run does not know.
_UNTRUSTED: Final = (InboxState, Incident)


@dataclass(slots=True)
class Evidence:
    """All records of a run, by type, each list in the order of its file."""

    operations: list[Operation] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    begun: list[Begun] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    business: list[Business] = field(default_factory=list)
    outbox: list[OutboxState] = field(default_factory=list)
    stream: list[Stored] = field(default_factory=list)
    inbox: list[InboxState] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    consumers: list[ConsumerEnd] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    hostile: list[Hostile] = field(default_factory=list)
    forged: list[Forged] = field(default_factory=list)
    letters: list[Letters] = field(default_factory=list)
    operated: list[Operated] = field(default_factory=list)
    ran: list[Ran] = field(default_factory=list)
    twins: list[Twins] = field(default_factory=list)
    notes: list[Noted] = field(default_factory=list)
    set_back: list[SetBack] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)
    diagnosed: list[Diagnosed] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    posted: list[Posted] = field(default_factory=list)
    strange: list[Strange] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    leftovers: list[Leftover] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)

    def noted(self, subscription: str) -> Mapping[str, int]:
        """How often a subscription beside those of the sources has handled each message."""
        return {it.message_id: it.count for it in self.notes if it.subscription == subscription}


_LISTS: Final[dict[type[Any], str]] = {
    Operation: "operations",
    Fault: "faults",
    Begun: "begun",
    Call: "calls",
    Sample: "samples",
    Business: "business",
    OutboxState: "outbox",
    Stored: "stream",
    InboxState: "inbox",
    Effect: "effects",
    Incident: "incidents",
    ConsumerEnd: "consumers",
    Lost: "lost",
    Hostile: "hostile",
    Forged: "forged",
    Letters: "letters",
    Operated: "operated",
    Ran: "ran",
    Twins: "twins",
    Noted: "notes",
    SetBack: "set_back",
    Orphan: "orphans",
    Diagnosed: "diagnosed",
    Receipt: "receipts",
    Failure: "failures",
    Posted: "posted",
    Strange: "strange",
    Probe: "probes",
    Leftover: "leftovers",
    Ended: "ended",
}
_TYPES: Final = {kind.__name__: kind for kind in get_args(Record)}


def gather(records: Iterable[Record]) -> Evidence:
    """Sort records by type."""
    evidence = Evidence()
    for record in records:
        getattr(evidence, _LISTS[type(record)]).append(record)
    return evidence


def read(directory: Path) -> Evidence:
    """Read every ``*.jsonl`` of a run. An incomplete last line, left by a killed process, is ignored."""
    return gather(record for path in sorted(directory.glob("*.jsonl")) for record in _records(path))


def _records(path: Path) -> Iterator[Record]:
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield _decode(json.loads(line))


def _decode(fields: dict[str, Any]) -> Record:
    kind = _TYPES[fields.pop("record")]
    if "events" in fields:
        fields["events"] = tuple(Produced(**_typed(event, _ENUMS)) for event in fields["events"])
    enums = {} if kind in _UNTRUSTED else _ENUMS
    record: Record = kind(**_typed(fields, enums))
    return record


def _typed(fields: dict[str, Any], enums: dict[str, type[Enum]]) -> dict[str, Any]:
    return {name: enums[name](value) if name in enums else value for name, value in fields.items()}
