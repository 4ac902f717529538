"""Real workers that hear the hints of producers: one publishes at once, and another takes over when it hangs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from relay.adapters.dramatiq.gates import Gates
from relay.adapters.members import Members
from relay.devstack import processes
from relay.domain.members import Member, State, listener_of
from tests.acceptance.fleet import Fleet
from tests.acceptance.test_publishing_fleet import published
from tests.waiting import wait_for

ADD = """
    INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
    VALUES (gen_random_uuid(), 'vibe', 'v1', 'vibe_created', '{}')"""


def working(fleet: Fleet) -> list[Member]:
    """The workers that are not lost."""

    async def ask() -> list[Member]:
        gates = Gates(fleet.valkey.url, "relay")
        try:
            seen = await Members(gates.client, "relay").all()
        finally:
            await gates.aclose()
        return [it.member for it in seen if it.state is State.WORKING and it.member.publishes]

    return asyncio.run(ask())


def listening(fleet: Fleet) -> list[str]:
    """Those of them that say that they listen to the producers of the context."""
    return [it.id for it in working(fleet) if "vibespro" in it.listens]


def test_one_worker_hears_hints_and_another_takes_over_when_it_hangs(start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet()
    scheduler = fleet.scheduler()
    for _ in range(2):
        fleet.worker()
    wait_for("hints are wanted", lambda: fleet.query("vibespro", "SELECT sleeping FROM relay_wakeup") == [(True,)])
    wait_for("both publish", lambda: len(working(fleet)) == 2)
    workers = {it.id: it.pid for it in working(fleet)}
    first = listener_of("vibespro", workers)
    assert first is not None
    [second] = workers.keys() - {first}
    wait_for("one listens", lambda: listening(fleet) == [first])

    processes.freeze(workers[first])
    fleet.query("vibespro", ADD)
    wait_for("a job of the other publishes", lambda: published(fleet) == 1)
    wait_for("the other listens", lambda: listening(fleet) == [second])

    fleet.kill(scheduler)
    fleet.query("vibespro", ADD)
    wait_for("it needs no scheduler", lambda: published(fleet) == 2)

    processes.thaw(workers[first])
    wait_for("the first listens again, alone", lambda: listening(fleet) == [first])
    fleet.query("vibespro", ADD)
    wait_for("nor does this one", lambda: published(fleet) == 3)
    ids = Counter(message.headers["Nats-Msg-Id"] for message in fleet.messages("VIBESPRO_EVENTS"))
    assert set(ids.values()) == {1}
    assert len(ids) == 3
    duplicates = "SELECT count(*) FROM outbox_events WHERE published_duplicate"
    assert fleet.query("vibespro", duplicates) == [(0,)]
