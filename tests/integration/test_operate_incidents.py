"""What an operator decides over dead letters: back into the inbox, discarded, resolved. Always audited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import psycopg
import pytest

from relay.devstack import NatsServer
from relay.domain.errors import InvalidRequest
from relay.domain.letters import letter_id
from relay.domain.operators import Operator, Outcome
from tests.integration.consuming import SUBSCRIPTION, Handler
from tests.integration.incidents import ANN, Desk, at_the_desk, waiting_for_locks
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def desk(database_url: str, nats_server: NatsServer) -> AsyncIterator[Desk]:
    async with at_the_desk(database_url, nats_server.url) as desk:
        yield desk


def codes(outcome: Outcome) -> dict[str, str]:
    return {id: error.code for id, error in outcome.refused}


async def swept(desk: Desk) -> list[UUID]:
    """What the next sweep enqueues."""
    return list(await desk.sub.inbox.overdue(SUBSCRIPTION, 10))


async def test_a_requeued_message_is_handled_and_no_longer_dead(desk: Desk) -> None:
    message_id, incident = await desk.incident(503, max_attempts=1)
    before = (await desk.sub.js.stream_info(desk.sub.stream)).state.last_seq
    assert await swept(desk) == []
    assert await desk.incidents.requeue([incident], ANN) == Outcome((str(incident),), (), deed=1)
    assert await swept(desk) == [message_id]
    row = await desk.sub.row(message_id)
    reset = (row["attempts"], row["dead_letter_reason"], row["dead_letter_class"], row["dead_lettered_at"])
    assert reset == (0, None, None, None)
    handler = Handler()
    await desk.sub.process(handler).process(message_id)
    assert [request.attempt for request in handler.requests] == [1]
    assert (await desk.sub.row(message_id))["processed_at"] is not None
    # Not by way of the stream: nothing was published, and its letter keeps the attempts of that time.
    assert (await desk.sub.js.stream_info(desk.sub.stream)).state.last_seq == before
    [found] = await desk.rows()
    assert (found["status"], found["attempts"], found["closed_by"]) == ("requeued", 1, "ann")
    detail = await desk.incidents.get(incident)
    assert detail is not None
    assert detail["handled_at"] == (await desk.sub.row(message_id))["processed_at"]


async def test_a_second_death_within_the_duplicate_window_is_a_second_incident(desk: Desk) -> None:
    message_id, first = await desk.incident()
    await desk.incidents.requeue([first], ANN)
    await desk.sub.process(Handler.answering(422)).process(message_id)
    assert await desk.record().run() == 1
    rows = await desk.rows()
    assert [(row["occurrence"], row["status"]) for row in rows] == [(1, "requeued"), (2, "open")]
    letters = await desk.sub.dead_letters()
    ids = [str(letter_id(desk.sub.context, SUBSCRIPTION, message_id, death)) for death in (1, 2)]
    assert [letter["_headers"]["Nats-Msg-Id"] for letter in letters] == ids
    assert codes(await desk.incidents.requeue([first], ANN)) == {str(first): "INCIDENT_CLOSED"}
    assert (await desk.incidents.requeue([rows[1]["id"]], ANN)).done
    await desk.sub.process(Handler()).process(message_id)
    assert (await desk.sub.row(message_id))["processed_at"] is not None


async def test_a_second_death_that_is_routed_twice_is_one_letter(desk: Desk) -> None:
    message_id, incident = await desk.incident()
    await desk.incidents.requeue([incident], ANN)
    command = desk.sub.process(Handler.answering(422))
    await command.process(message_id)
    await desk.sub.query("UPDATE inbox_messages SET dead_lettered_at = NULL")
    await command.process(message_id)
    assert len(await desk.sub.dead_letters()) == 2
    assert await desk.record().run() == 1


async def test_a_message_that_could_not_be_read_is_not_requeued(desk: Desk) -> None:
    await desk.sub.send(b"not json")
    await desk.sub.pull().accept(await desk.sub.fetch())
    await desk.sub.process(Handler()).process(desk.sub.enqueued[-1])
    await desk.record().run()
    [row] = await desk.rows()
    assert codes(await desk.incidents.requeue([row["id"]], ANN)) == {str(row["id"]): "UNREADABLE_MESSAGE"}
    assert (await desk.rows())[0]["status"] == "open"
    assert await swept(desk) == []
    assert await desk.audit() == []


async def test_a_message_whose_dead_letter_is_still_being_settled_is_not_requeued(desk: Desk) -> None:
    """Its worker died behind the letter: reset now, the row would be rejected by nobody and die unseen."""
    message_id, incident = await desk.incident()
    await desk.sub.query("UPDATE inbox_messages SET dead_lettered_at = NULL")
    assert codes(await desk.incidents.requeue([incident], ANN)) == {str(incident): "NOT_REQUEUEABLE"}
    row = await desk.sub.row(message_id)
    assert (row["dead_letter_reason"], row["requeues"]) == ("HTTP 422: why", 0)


async def test_an_incident_of_an_earlier_death_does_not_wake_a_later_one(desk: Desk) -> None:
    message_id, incident = await desk.incident()
    await desk.sub.query("UPDATE inbox_messages SET requeues = 1")
    assert codes(await desk.incidents.requeue([incident], ANN)) == {str(incident): "NOT_REQUEUEABLE"}
    assert (await desk.sub.row(message_id))["dead_lettered_at"] is not None


async def test_a_processed_message_is_never_reset(desk: Desk) -> None:
    message_id, incident = await desk.incident()
    await desk.sub.query("UPDATE inbox_messages SET processed_at = now() + interval '1 second'")
    assert codes(await desk.incidents.requeue([incident], ANN)) == {str(incident): "NOT_REQUEUEABLE"}
    assert (await desk.sub.row(message_id))["processed_at"] is not None


async def test_two_operators_at_once_requeue_once(desk: Desk) -> None:
    message_id, incident = await desk.incident()
    outcomes = await asyncio.gather(*(desk.incidents.requeue([incident], Operator(name)) for name in "abcd"))
    assert sorted(len(outcome.done) for outcome in outcomes) == [0, 0, 0, 1]
    assert (await desk.sub.row(message_id))["requeues"] == 1
    assert len(await desk.audit()) == 1


async def test_who_comes_second_sees_what_the_first_decided(desk: Desk, database_url: str) -> None:
    _, incident = await desk.incident()
    async with await psycopg.AsyncConnection.connect(database_url) as first:
        await first.execute("UPDATE dead_letters SET status = 'requeued'")
        second = asyncio.create_task(desk.incidents.discard([incident], ANN))
        await eventually("the second waits", lambda: waiting_for_locks(database_url))
    assert codes(await second) == {str(incident): "INCIDENT_CLOSED"}
    assert (await desk.rows())[0]["status"] == "requeued"


async def test_many_at_once_answer_one_by_one_and_are_audited_together(desk: Desk) -> None:
    _, good = await desk.incident()
    _, closed = await desk.incident()
    await desk.incidents.resolve([closed], ANN)
    outcome = await desk.incidents.requeue([good, 999_999, good], ANN)
    assert outcome.done == (str(good),)
    assert codes(outcome) == {"999999": "UNKNOWN_INCIDENT"}
    assert (await desk.audit())[-1] == {
        "actor": "ann",
        "action": "dlq.requeue",
        "ids": [str(good)],
        "note": "because",
    }


async def test_discarding_and_resolving_need_a_reason_and_an_open_incident(desk: Desk) -> None:
    message_id, first = await desk.incident()
    _, second = await desk.incident()
    with pytest.raises(InvalidRequest, match="why"):
        await desk.incidents.discard([first], Operator("ann", "  "))
    assert (await desk.incidents.discard([first], ANN)).done == (str(first),)
    assert (await desk.incidents.resolve([second], ANN)).done == (str(second),)
    assert [(row["status"], row["note"]) for row in await desk.rows()] == [
        ("discarded", "because"),
        ("resolved", "because"),
    ]
    assert codes(await desk.incidents.resolve([first], ANN)) == {str(first): "INCIDENT_CLOSED"}
    assert [entry["action"] for entry in await desk.audit()] == ["dlq.discard", "dlq.resolve"]
    assert await swept(desk) == []
    assert (await desk.incidents.requeue([first], ANN)).done  # thought better of it
    assert await swept(desk) == [message_id]


async def test_without_its_audit_row_nothing_happens(desk: Desk) -> None:
    message_id, incident = await desk.incident()
    await desk.sub.query("ALTER TABLE audit_log ADD CONSTRAINT closed CHECK (false)")
    with pytest.raises(Exception, match="closed"):
        await desk.incidents.requeue([incident], ANN)
    assert (await desk.rows())[0]["status"] == "open"
    assert (await desk.sub.row(message_id))["dead_lettered_at"] is not None


def test_somebody_acts() -> None:
    for actor in ("", "  ", "x" * 201):
        with pytest.raises(InvalidRequest):
            Operator(actor)
