"""The adapters of `relay.testing` keep the contracts of their ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from relay.domain.archive import ArchivedRow, ArchiveKind
from relay.domain.model import OutboxEvent
from relay.domain.schedule import WaitingRun
from relay.ports import InboxRow
from relay.testing import (
    Clock,
    MemoryArchive,
    MemoryColdStore,
    MemoryConsumer,
    MemoryInbox,
    MemoryIncidents,
    MemoryOutbox,
    MemoryPublisher,
    MemoryRuns,
    MemoryStream,
)
from relay.testing.contracts import (
    ArchiveContract,
    ColdStoreContract,
    ConsumerContract,
    InboxContract,
    IncidentsContract,
    OutboxContract,
    PublisherContract,
    PublishState,
    RunsContract,
)

pytestmark = pytest.mark.anyio


class Bench:
    """Everything in memory, on one clock."""

    subject = "up.event.a"
    name = "UP"

    def __init__(self) -> None:
        self.clock = Clock()
        self.inbox = MemoryInbox(self.clock, grace=timedelta(minutes=10))
        self.outbox = MemoryOutbox(self.clock)
        self.stream = MemoryStream(self.name, "up.event.*", clock=self.clock)
        self.publisher = MemoryPublisher(self.stream)
        self.ack_wait = timedelta(minutes=2)
        self.consumer = MemoryConsumer(self.stream, "down", ack_wait=self.ack_wait)
        self.incidents = MemoryIncidents(self.inbox)
        self.runs = MemoryRuns(self.clock)
        self.store = MemoryColdStore()
        self.tables = MemoryArchive(self.clock)

    async def elapse(self, time: timedelta) -> None:
        self.clock.move(time)

    # --- inbox ---

    async def requeue(self, message_id: UUID) -> None:
        self.inbox.requeue(message_id)

    async def error_of(self, message_id: UUID) -> str | None:
        return self.inbox.messages[message_id].last_error

    # --- outbox ---

    async def add(self, *events: OutboxEvent) -> None:
        for event in events:
            self.outbox.add(event)

    async def lose_claims(self) -> None:
        self.clock.move(timedelta(seconds=6))

    async def state(self, id: UUID) -> PublishState:
        found = self.outbox.events[str(id)]
        attempts = found.row.publish_attempts
        return PublishState(attempts, found.publish_error, found.dead_at is not None, found.ack)

    # --- stream ---

    async def stored(self) -> Sequence[tuple[bytes, Mapping[str, str]]]:
        return [(message.body, message.headers) for message in self.stream.messages]

    async def send(self, *bodies: bytes) -> None:
        for body in bodies:
            self.stream.store(self.subject, body, {})

    async def pass_ack_wait(self) -> None:
        self.clock.move(self.ack_wait)

    # --- records ---

    async def receive(self, body: bytes) -> UUID:
        row = InboxRow(uuid4(), "s", "from_up", "UP", 1, "reply", body, {})
        await self.inbox.insert([row])
        return row.message_id

    async def original_of(self, id: int) -> bytes | None:
        return self.incidents.letters[id].original

    async def open(self, run: WaitingRun) -> None:
        self.runs.open(run)

    async def publish(self, stream: str, age: timedelta) -> UUID:
        row = ArchivedRow(uuid4(), self.clock.now - age, "{}")
        self.tables.tables[ArchiveKind.OUTBOX].append((stream, row))
        return row.id


@pytest.fixture
def bench() -> Bench:
    return Bench()


class TestInbox(InboxContract):
    pass


class TestOutbox(OutboxContract):
    pass


class TestPublisher(PublisherContract):
    pass


class TestConsumer(ConsumerContract):
    pass


class TestIncidents(IncidentsContract):
    pass


class TestRuns(RunsContract):
    pass


class TestColdStore(ColdStoreContract):
    pass


class TestArchive(ArchiveContract):
    pass
