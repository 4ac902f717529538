"""The rows of one subscription or type of tasks now, by one statement. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from relay.adapters.postgres.pool import Source, query
from relay.domain.disclosure import stack_of
from relay.domain.history import Of
from relay.domain.reasons import code_of
from relay.domain.work import COUNTED, STATES, HandlerAway, InState, ReasonCount, RowsNow

_STATEMENTS: Final = {Of.SUBSCRIPTION: "work/subscription", Of.TASK: "work/task"}
_PARTS: Final = ("state", "reason", "queue", "keys", "away")


async def rows_now(source: Source, of: Of, name: str, counted: int = COUNTED) -> RowsNow:
    """Count the rows. Raises DatabaseUnreachable and SchemaMissing."""
    async with source() as conn:
        found = await query(conn, _STATEMENTS[of], name=name, limit=counted)
    rows = {what: [it[1:] for it in found if it[0] == what] for what in _PARTS}
    return RowsNow(
        states=sorted((InState(state, count, age) for state, _, count, age in rows["state"]), key=_order),
        causes=_causes(rows["reason"]),
        queues=sorted(name for name, *_ in rows["queue"]),
        parked_keys=sum(count for _, _, count, _ in rows["keys"]),
        away=next((HandlerAway(reason or "", seconds) for _, reason, _, seconds in rows["away"]), None),
    )


def _order(it: InState) -> int:
    return STATES.index(it.state)


def _causes(rows: Sequence[Sequence[Any]]) -> Sequence[ReasonCount]:
    """Put texts of one code together, the most frequent first. The text is that of the last row."""
    counts: dict[tuple[str, str], int] = {}
    texts: dict[tuple[str, str], str] = {}
    for state, reason, count, _ in sorted(rows, key=lambda it: it[3]):
        cause = state, code_of(reason)
        counts[cause] = counts.get(cause, 0) + count
        texts.setdefault(cause, stack_of(reason or "")[0])
    found = [ReasonCount(*cause, texts[cause], count) for cause, count in counts.items()]
    return sorted(found, key=lambda it: (-it.count, it.state, it.code))
