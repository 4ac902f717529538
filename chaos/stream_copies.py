"""Promise 10, the stream: no event is stored twice without a cause, and copies keep the order of their key.

Within the duplicate window JetStream drops a copy. A second copy needs two things. The publisher did not learn, or
could not record, that the first was stored. And faults stopped it from publishing again until the window had
passed. Events of a lost tail, or that an operator replayed, are stored again on purpose.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from chaos.evidence import Evidence
from chaos.history import Fault, Stored
from chaos.ledger import Ledger
from chaos.windows import Windows

#: The duplicate window of the stream, with some seconds less for the age of the entry.
WINDOW: Final = 115.0
#: A publisher's outcome may be unknown if a fault was so near, in seconds.
_NEAR: Final = 15.0
#: With so many seconds without faults the publisher would have published again.
_CALM: Final = 20.0
#: Faults that do not disturb publishing, by kind and by target.
_ELSEWHERE: Final = (
    *("service-", "poison-rows", "future-rows", "handler-hang", "handler-away", "hostile-messages"),
    "same-ids",
    "forged-letters",
)
_OTHER_LINKS: Final = frozenset({"worker-service", "service-postgres", "producer-postgres"})


def unexplained(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Yield a sentence for every copy that no fault explains."""
    windows = Windows([fault for fault in evidence.faults if _disturbs_publishing(fault)])
    for id, copies in _copies(evidence, ledger).items():
        for before, copy in pairwise(copies):
            if (cause := _lacking(windows, before, copy)) is not None:
                apart = f"{copy.at - before.at:.1f} s apart"
                yield f"event {id} is in the stream at {before.seq} and {copy.seq}, {apart}: {cause}"


def _disturbs_publishing(fault: Fault) -> bool:
    return not fault.kind.startswith(_ELSEWHERE) and fault.target not in _OTHER_LINKS


def _lacking(windows: Windows, before: Stored, copy: Stored) -> str | None:
    """Return what is missing for an explanation; None if nothing is."""
    if copy.at - before.at < WINDOW:
        return "within the duplicate window"
    if not windows.any_within(before.at - _NEAR, before.at + _NEAR):
        return "no fault was near the first"
    if (calm := windows.longest_calm(before.at, copy.at)) > _CALM:
        return f"between them was peace for {calm:.0f} s"
    return None


def _copies(evidence: Evidence, ledger: Ledger) -> dict[str, list[Stored]]:
    meant = ledger.lost | ledger.replayed
    copies: defaultdict[str, list[Stored]] = defaultdict(list)
    for message in evidence.stream:
        if ledger.stored[message.id] > 1 and message.id in ledger.committed and message.id not in meant:
            copies[message.id].append(message)
    return copies


def relapses(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Yield a sentence for every key whose copies are out of order.

    A publisher that repeats events starts again at some event of the key and sends all that follow. So the next
    event or an earlier one follows a copy, and the newest event comes last.
    """
    repeated = {key: ids for key, ids in ledger.keys.items() if any(ledger.stored[id] > 1 for id in ids)}
    ranks = {id: (key, rank) for key, ids in repeated.items() for rank, id in enumerate(_stored(ledger, ids))}
    last: dict[str, tuple[int, str]] = {}
    newest: dict[str, int] = {}
    for message in evidence.stream:
        if message.id not in ranks or (key := ranks[message.id][0]) == "":
            continue
        rank = ranks[message.id][1]
        before = last.get(key, (-1, ""))
        if before[0] + 1 < rank <= newest.get(key, -1) + 1:
            yield f"key {key}: after the copy of {before[1]} the stream has {message.id}, with others between them"
        last[key], newest[key] = (rank, message.id), max(rank, newest.get(key, -1))
    for key, (rank, id) in last.items():
        if rank < newest[key]:
            yield f"key {key}: a copy of event {id} is in the stream after later events of its key"


def _stored(ledger: Ledger, ids: list[str]) -> list[str]:
    """The events of a key that the stream has, without those that were published again for a good reason."""
    meant = ledger.lost | ledger.replayed
    return [id for id in ids if id in ledger.first and id not in meant]
