"""Subscriptions that read dead letters and fail: whatever reads whom, no letter makes a letter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.acceptance.produce import commit_one
from tests.waiting import wait_for

READER = """
[contexts.{context}.subscriptions.{name}]
stream = "{stream}"
filter_subject = "{filter}"
handler = "{handler}"
handler_timeout = "10s"
"""
#: Each context reads its own letters and those of the other one.
READERS = (
    ("sea", "own", "SEA_DLQ", "sea.dlq.>"),
    ("sea", "theirs", "VIBESPRO_DLQ", "*.dlq.>"),
    ("vibespro", "own", "VIBESPRO_DLQ", "vibespro.dlq.>"),
    ("vibespro", "theirs", "SEA_DLQ", "sea.>"),
)
EVENTS = 10
DEAD = "SELECT subscription, count(*)::int FROM {} WHERE {} IS NOT NULL GROUP BY 1 ORDER BY 1"


def test_contexts_that_read_their_own_and_each_others_letters_stop(
    start_fleet: Callable[..., Fleet], handler: HandlerService
) -> None:
    handler.verdict = lambda _body, _n: 422
    names = ("context", "name", "stream", "filter")
    readers = (READER.format(handler=handler.url, **dict(zip(names, it, strict=True))) for it in READERS)
    fleet = start_fleet(more="".join(readers))
    fleet.scheduler()
    fleet.worker()
    for _ in range(EVENTS):
        commit_one(fleet.urls["vibespro"])

    def counts(context: str, table: str, column: str) -> dict[str, int]:
        return dict(fleet.query(context, DEAD.format(table, column)))

    def all_died() -> Any:
        return (
            counts("sea", "inbox_messages", "dead_lettered_at") == {"from_vibespro": EVENTS, "own": EVENTS}
            and counts("vibespro", "inbox_messages", "dead_lettered_at") == {"theirs": EVENTS}
            and counts("sea", "dead_letters", "recorded_at") == {"from_vibespro": EVENTS, "own": EVENTS}
            and counts("vibespro", "dead_letters", "recorded_at") == {"theirs": EVENTS}
        )

    wait_for("each death is an incident, and no more die", all_died)
    assert len(fleet.messages("SEA_DLQ")) == EVENTS
    assert fleet.messages("VIBESPRO_DLQ") == []
