"""What the adapters in memory offer to tests beyond their ports: outages, answers, options, facts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any
from uuid import uuid4

import pytest

from relay.domain.archive import ArchiveKind, StoreUnreachable
from relay.domain.errors import BrokerUnreachable, DatabaseUnreachable
from relay.domain.facts import LeadLost, LeadTaken
from relay.domain.model import HandlerResult, OutboxEvent, Verdict
from relay.domain.policies import OutcomeUnknown, Published
from relay.domain.schedule import WaitingRun
from relay.ports import HandlerRequest, InboxRow, Message, PublishFailure
from relay.testing import (
    MemoryArchive,
    MemoryColdStore,
    MemoryConsumer,
    MemoryFacts,
    MemoryHandler,
    MemoryInbox,
    MemoryIncidents,
    MemoryOutbox,
    MemoryPublisher,
    MemoryRuns,
    MemoryStream,
)

pytestmark = pytest.mark.anyio

SECOND = timedelta(seconds=1)
ROW = InboxRow(uuid4(), "s", "from_up", "UP", 1, "reply", b"{}", {})
RUN = WaitingRun("nightly", datetime(2026, 1, 1, tzinfo=UTC))


async def _pages(inbox: MemoryInbox) -> None:
    [page async for page in inbox.waiting("from_up", 10)]


async def _claimed(outbox: MemoryOutbox) -> None:
    async with outbox.find_unpublished([1], 1, 1):
        pass


async def _opened(tables: MemoryArchive) -> None:
    async with tables.open(ArchiveKind.INBOX, [], SECOND, 1):
        pass


def consumer() -> MemoryConsumer:
    return MemoryConsumer(MemoryStream("UP", ">"), "down", ack_wait=SECOND)


CALLS: list[tuple[Callable[[], Any], type[Exception], Callable[[Any], Awaitable[Any]]]] = [
    (MemoryInbox, DatabaseUnreachable, lambda it: it.ping()),
    (MemoryInbox, DatabaseUnreachable, lambda it: it.insert([ROW])),
    (MemoryInbox, DatabaseUnreachable, lambda it: it.due("from_up", 1)),
    (MemoryInbox, DatabaseUnreachable, lambda it: it.claim(ROW.message_id, SECOND)),
    (MemoryInbox, DatabaseUnreachable, lambda it: it.overdue("from_up", 1)),
    (MemoryInbox, DatabaseUnreachable, lambda it: it.missing("from_up", "UP", 0, 1)),
    (MemoryInbox, DatabaseUnreachable, lambda it: it.finished("from_up", "UP", 0, 1)),
    (MemoryInbox, DatabaseUnreachable, _pages),
    (MemoryOutbox, DatabaseUnreachable, _claimed),
    (MemoryIncidents, DatabaseUnreachable, lambda it: it.record_letters([])),
    (MemoryRuns, DatabaseUnreachable, lambda it: it.claim(RUN, uuid4(), "ann")),
    (MemoryPublisher, BrokerUnreachable, lambda it: it.publish("s", b"{}", {})),
    (consumer, BrokerUnreachable, lambda it: it.fetch(1, SECOND)),
    (consumer, BrokerUnreachable, lambda it: it.ack(["$JS.ACK.UP.down.1.1.1.0.0"])),
    (consumer, BrokerUnreachable, lambda it: it.state()),
    (MemoryColdStore, StoreUnreachable, lambda it: it.put("name", BytesIO())),
    (MemoryColdStore, StoreUnreachable, lambda it: it.names("")),
    (MemoryArchive, DatabaseUnreachable, _opened),
    (MemoryArchive, DatabaseUnreachable, lambda it: it.streams(ArchiveKind.INBOX)),
    (MemoryArchive, DatabaseUnreachable, lambda it: it.batches()),
]


@pytest.mark.parametrize(("make", "error", "call"), CALLS)
async def test_an_adapter_that_is_down_raises_the_error_of_an_outage(
    make: Callable[[], Any], error: type[Exception], call: Callable[[Any], Awaitable[Any]]
) -> None:
    adapter = make()
    adapter.down = True
    with pytest.raises(error):
        await call(adapter)


async def test_a_settlement_during_an_outage_fails_and_its_claim_is_kept() -> None:
    inbox = MemoryInbox()
    await inbox.insert([ROW])
    claim = await inbox.claim(ROW.message_id, SECOND)
    assert claim is not None
    inbox.down = True
    with pytest.raises(DatabaseUnreachable):
        await inbox.mark_dead_lettered(claim)
    inbox.down = False
    assert await inbox.mark_dead_lettered(claim)


async def test_a_publisher_answers_as_it_is_told_and_keeps_the_key_behind_it_back() -> None:
    stream = MemoryStream("UP", "up.>")
    publisher = MemoryPublisher(stream)
    publisher.answers["1"] = OutcomeUnknown("no PubAck")
    outcomes = await publisher.publish_all([Message(id, "up.a", b"", {}, "key") for id in ("1", "2")])
    assert outcomes["1"] == OutcomeUnknown("no PubAck")
    assert stream.messages == []
    publisher.answers.clear()
    assert await publisher.publish("up.a", b"", {}) == Published("UP", 1)


async def test_a_stream_forgets_ids_after_its_window_and_takes_its_own_subjects_only() -> None:
    stream = MemoryStream("UP", "up.*.v1", "up.all.>")
    assert [stream.takes(it) for it in ("up.a.v1", "up.all.b.c", "up.a.b.v1", "up.a")] == [
        True,
        True,
        False,
        False,
    ]
    assert [stream.store("up.a.v1", b"", {"Nats-Msg-Id": "1"}).seq for _ in range(2)] == [1, 1]
    stream.clock.move(timedelta(minutes=2))
    assert stream.store("up.a.v1", b"", {"Nats-Msg-Id": "1"}) == Published("UP", 2)


async def test_a_consumer_gets_the_subjects_of_its_filter() -> None:
    stream = MemoryStream("UP", ">")
    filtered = MemoryConsumer(stream, "down", filter_subject="up.*", ack_wait=SECOND)
    for subject in ("up.a", "other.b", "up.c"):
        stream.store(subject, b"", {})
    assert [it.subject for it in await filtered.fetch(10, SECOND)] == ["up.a", "up.c"]


async def test_a_dead_event_blocks_its_key_where_that_is_asked_for() -> None:
    outbox = MemoryOutbox(dead_head_blocks=True)
    for _ in range(2):
        outbox.add(
            OutboxEvent(
                id=uuid4(), aggregate_type="v", aggregate_id="1", event_type="e", payload="{}", partition_key="k"
            )
        )
    async with outbox.find_unpublished(range(64), 1, 1) as claim:
        await claim.increment_attempts([PublishFailure(claim.rows[0].id, "boom", None)])
    async with outbox.find_unpublished(range(64), 1, 1) as claim:
        assert claim.rows == []


async def test_a_handler_answers_in_turn_and_remembers_what_it_was_asked() -> None:
    handler = MemoryHandler(HandlerResult.failed("busy"), HandlerResult.from_status(200))
    request = HandlerRequest(uuid4(), "s", "vibe_created", 1, None, 1, b"{}", {}, uuid4())
    answers = [(await handler.handle(request)).verdict for _ in range(3)]
    assert answers == [Verdict.TRANSIENT, Verdict.PROCESSED, Verdict.PROCESSED]
    assert handler.requests == [request] * 3


def test_facts_are_remembered_in_their_order_and_found_by_their_kind() -> None:
    facts = MemoryFacts()
    taken, lost = LeadTaken(context="sea", term=1), LeadLost(context="sea")
    for fact in (taken, lost):
        facts(fact)
    assert facts == [taken, lost]
    assert facts.of(LeadLost) == [lost]
