"""`@on_dead_letter`: a function of the application, once in effect, for each dead letter."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from consumer.correcting import CorrectDeadLetters
from consumer.corrections import Corrections, DeadMessage, on_dead_letter
from relay import Event, Outbox
from relay.adapters.postgres.transactions import HandlerTransactions
from relay.devstack import NatsServer
from relay.domain.errors import InvalidHandler
from relay.domain.incidents import IncidentFilter
from tasks import schedule
from tests.integration.consuming import SUBSCRIPTION
from tests.integration.incidents import Desk, at_the_desk

pytestmark = pytest.mark.anyio


@dataclass
class Corrected:
    """A desk, and who corrects its dead letters."""

    desk: Desk
    transactions: HandlerTransactions

    def by(self, function: Callable[..., Any], kind: str | None = None, **options: Any) -> CorrectDeadLetters:
        found = Corrections()
        on_dead_letter(kind, into=found)(function)
        its = found.of(SUBSCRIPTION, __name__)
        return CorrectDeadLetters(SUBSCRIPTION, its, self.desk.incidents, self.transactions, **options)

    async def effects(self) -> list[Any]:
        return [row["n"] for row in await self.desk.sub.query("SELECT n FROM effects ORDER BY n")]

    async def ends(self) -> list[str | None]:
        """How corrections ended: as the rows have it, and as operators see it in lists and of one incident."""
        found = [(row["id"], row["correction"]) for row in await self.desk.rows()]
        listed = await self.desk.incidents.find(IncidentFilter(), 100)
        assert sorted((row["id"], row["correction"]) for row in listed.items) == sorted(found)
        for id, correction in found:
            shown = await self.desk.incidents.get(id)
            assert shown is not None
            assert shown["correction"] == correction
        return [correction for _, correction in found]

    async def failures(self) -> list[str]:
        found = await self.desk.sub.query("SELECT reason FROM alerts WHERE class = 'failed_correction'")
        return [row["reason"] for row in found]


@pytest.fixture
async def corrected(database_url: str, nats_server: NatsServer) -> AsyncIterator[Corrected]:
    limit = timedelta(seconds=30)
    transactions = HandlerTransactions(database_url, limit=limit, application_name="tests")
    async with at_the_desk(database_url, nats_server.url) as desk:
        await desk.sub.query("CREATE TABLE effects (n TEXT)")
        try:
            yield Corrected(desk, transactions)
        finally:
            await transactions.close()


async def test_it_writes_schedules_and_adds_events_once_for_each_dead_letter(corrected: Corrected) -> None:
    seen: list[DeadMessage] = []

    def correct(letter: DeadMessage, session: Session) -> None:
        seen.append(letter)
        session.execute(text("INSERT INTO effects VALUES (:n)"), {"n": str(letter.message_id)})
        Outbox("sea").add(
            session, Event(event_type="lost", aggregate_type="vibe", aggregate_id="1", payload=letter.content)
        )
        schedule(session, "call", {}, registered=False)

    by, desk = corrected.by(correct), corrected.desk
    assert await by.run() == 0
    id, incident = await desk.incident(422, payload={"a": 1})
    assert [await by.run(), await by.run()] == [1, 0]
    [letter] = seen
    assert (letter.message_id, letter.incident_id, letter.reason_code) == (id, incident, "status_422")
    assert (letter.kind, letter.event_type, letter.content["payload"]) == ("poison", "vibe_created", {"a": 1})
    assert await corrected.effects() == [str(id)]
    [event] = await desk.sub.query("SELECT causation_id FROM outbox_events")
    [task] = await desk.sub.query("SELECT type FROM task_outbox")
    assert (event["causation_id"], task["type"]) == (id, "call")
    assert await corrected.ends() == [f"done by {__name__}.{correct.__qualname__}"]


async def test_two_workers_have_one_effect(corrected: Corrected) -> None:
    both = threading.Barrier(2)

    def correct(letter: DeadMessage, connection: psycopg.Connection[Any]) -> None:
        connection.execute("INSERT INTO effects VALUES ('x')")
        both.wait(60)

    one, other = corrected.by(correct), corrected.by(correct)
    await one.run()
    await corrected.desk.incident(422)
    await asyncio.gather(one.run(), other.run())
    assert await corrected.effects() == ["x"]
    assert await corrected.failures() == []


async def test_if_it_raises_its_writes_are_rolled_back_and_that_alerts(corrected: Corrected) -> None:
    async def correct(letter: DeadMessage, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute("INSERT INTO effects VALUES ('x')")
        raise KeyError("s3cret")

    by = corrected.by(correct)
    await by.run()
    await corrected.desk.incident(422)
    assert [await by.run(), await by.run()] == [1, 0]
    [failure], [end] = await corrected.failures(), await corrected.ends()
    assert (await corrected.effects(), failure[:9], str(end)[:17]) == ([], "KeyError ", "failed: KeyError ")
    assert "s3cret" not in failure


async def test_if_it_hangs_that_alerts_and_what_it_writes_later_is_rolled_back(corrected: Corrected) -> None:
    go_on, done = threading.Event(), threading.Event()

    def correct(letter: DeadMessage, connection: psycopg.Connection[Any]) -> None:
        go_on.wait(60)
        connection.execute("INSERT INTO effects VALUES ('x')")
        done.set()

    by = corrected.by(correct, limit=timedelta(seconds=0.2))
    await by.run()
    await corrected.desk.incident(422)
    await by.run()
    go_on.set()
    await asyncio.to_thread(done.wait, 60)
    assert [it[:9] for it in await corrected.failures()] == ["time-out:"]
    assert (await corrected.effects(), len(await corrected.desk.rows())) == ([], 1)


async def test_dead_letters_of_other_types_and_of_before_are_left_alone(corrected: Corrected) -> None:
    seen: list[DeadMessage] = []

    def correct(letter: DeadMessage) -> None:
        seen.append(letter)

    await corrected.desk.incident(422)
    by = corrected.by(correct, "another_type")
    await by.run()
    await corrected.desk.incident(422)
    assert [await by.run(), await by.run()] == [1, 0]
    assert (seen, await corrected.ends()) == ([], [None, "none"])


def test_a_function_that_can_never_run_is_refused() -> None:
    def correct(letter: DeadMessage) -> None: ...

    for name, known in (("gone", [("inward", __name__)]), (None, [("inward", "others"), ("outward", None)])):
        found = Corrections()
        on_dead_letter(subscription=name, into=found)(correct)
        with pytest.raises(InvalidHandler, match="can never run"):
            found.check(known)
        found.check([*known, ("gone", __name__)])
        with pytest.raises(InvalidHandler, match="already"):
            on_dead_letter(subscription=name, into=found)(correct)
