"""What tests of consuming share: a subscription on real servers, with stream, DLQ and durable of its own."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import nats
import psycopg
from nats.js.api import ConsumerConfig, StreamConfig
from psycopg.rows import dict_row

from consumer.functions import PythonEventHandler
from consumer.key_order import DeliveryNumbers, NextOfKey
from consumer.message_rows import FunctionRows, MessageConfig, MessageRows
from consumer.pull import PullConfig, PullMessages, PullTimes
from consumer.recovery import Recovery, RecoveryLimits
from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.consumer import NatsJetStreamConsumer
from relay.adapters.jetstream.publisher import NatsJetStreamPublisher
from relay.adapters.jetstream.stream_reader import NatsStreamLookup, StreamReader
from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.adapters.postgres.inbox_chunks import PostgresChunks
from relay.adapters.postgres.incidents import PostgresIncidents
from relay.adapters.postgres.ordered_inbox import OrderedInboxAdapter
from relay.adapters.postgres.pool import Pool
from relay.commands.deadletter import RouteToDeadLetter
from relay.commands.incidents import RecordIncidents
from relay.domain.facts import Fact
from relay.domain.model import HandlerResult
from relay.domain.ordering import FailedHead
from relay.domain.retry import Backoff, RetryPolicy
from relay.execution.chunk import ChunkRows, RunChunk, side_by_side
from relay.execution.runners import Completions, RunOnLoop
from relay.ports import ClaimedMessage, Delivery, HandlerRequest, InboxRow
from tests.waiting import eventually

SUBSCRIPTION = "from_upstream"
LEASE = timedelta(seconds=30)
_numbers = itertools.count(1)


def inbox_row(seq: int = 1, **values: Any) -> InboxRow:
    """A readable message at ``seq`` of a stream, on its way into the inbox."""
    defaults: dict[str, Any] = {
        "message_id": uuid4(),
        "subject": "up.event.vibe_created.v1",
        "subscription": SUBSCRIPTION,
        "stream": "UP",
        "stream_seq": seq,
        "ack_subject": f"$JS.ACK.UP.d.1.{seq}.{seq}.0.0",
        "body": b"{}",
        "headers": {},
        "event_type": "vibe_created",
        "event_version": 1,
    }
    return InboxRow(**{**defaults, **values})


async def claimed(inbox: PostgresInboxAdapter, row: InboxRow, lease: timedelta = LEASE) -> ClaimedMessage:
    """The claim of a row that is free."""
    claim = await inbox.claim(row.message_id, lease)
    assert claim is not None
    return claim


@dataclass
class Handler:
    """An EventHandler that answers as the test says and remembers every request."""

    answer: Callable[[HandlerRequest], HandlerResult | Awaitable[HandlerResult]] = field(
        default=lambda _request: HandlerResult.from_status(200)
    )
    requests: list[HandlerRequest] = field(default_factory=list)

    async def handle(self, request: HandlerRequest) -> HandlerResult:
        self.requests.append(request)
        result = self.answer(request)
        return result if isinstance(result, HandlerResult) else await result

    @classmethod
    def answering(cls, *statuses: int) -> Handler:
        """Answers with these statuses in turn, and with the last one ever after."""
        remaining = list(statuses)
        return cls(
            lambda _request: HandlerResult.from_status(remaining.pop(0) if remaining[1:] else remaining[0], "why")
        )


class Lossy(NatsJetStreamConsumer):
    """A connection that is cut behind each acknowledgement."""

    async def ack(self, replies: Sequence[str]) -> None:
        """Into the void."""

    async def terminate(self, replies: Sequence[str], reason: str) -> None:
        """Into the void."""


class OneByOne:
    """Processes messages as the event loop of a worker does, and waits until it is done with each."""

    def __init__(self, rows: MessageRows) -> None:
        self.rows = rows
        self.completions = Completions(rows, asyncio.get_running_loop(), pause=0.0)
        self.on_loop = RunOnLoop(rows, self.completions.settle)

    async def process(self, message_id: UUID) -> timedelta | None:
        try:
            return await self.on_loop.run(message_id)
        finally:
            await self.completions.drain()


@dataclass
class Subscription:
    """A subscription on servers shared with other tests. Use `subscribed`."""

    url: str
    nats_url: str
    name: str = field(default_factory=lambda: f"up{next(_numbers)}x{uuid4().hex[:6]}")
    context: str = field(default_factory=lambda: f"down{next(_numbers)}x{uuid4().hex[:6]}")
    facts: list[Fact] = field(default_factory=list)
    enqueued: list[UUID] = field(default_factory=list)
    settle: str = "handler"
    #: How long a claim of a message holds if nobody renews it.
    lease: timedelta = timedelta(seconds=8)
    pull_times: PullTimes = field(default_factory=lambda: PullTimes(fetch=timedelta(milliseconds=300)))
    recovery_limits: RecoveryLimits = field(
        default_factory=lambda: RecoveryLimits(patience=timedelta(milliseconds=50))
    )
    order: OrderedInboxAdapter | None = None
    subscription: str = SUBSCRIPTION
    durable: str = "down"
    #: Whether another subscription, which is declared before, reads the same messages.
    apart: bool = False

    def keep_order(self, failed_head: FailedHead = "block") -> Subscription:
        """Become an ordered subscription."""
        self.inbox = self.order = OrderedInboxAdapter(self.pool, failed_head=failed_head)
        return self

    def numbers(self, **parts: Any) -> DeliveryNumbers | None:
        if self.order is None:
            return None
        return DeliveryNumbers(self.subscription, self.stream, self.order, parts.get("consumer", self.consumer))

    @property
    def stream(self) -> str:
        return self.name.upper()

    @property
    def dlq(self) -> str:
        return f"{self.context.upper()}_DLQ"

    @property
    def subject(self) -> str:
        return f"{self.name}.event.vibe_created.v1"

    # --- the product's parts ---

    async def enqueue(self, ids: Sequence[UUID]) -> None:
        self.enqueued.extend(ids)

    def pull(self, envelope: str = "handler", batch_size: int = 50, **parts: Any) -> PullMessages:
        config = PullConfig(
            context=self.context,
            subscription=self.subscription,
            envelope=envelope,
            batch_size=batch_size,
            ack_on_receipt=self.settle == "inbox",
            max_due=parts.get("max_due", 2_000),
            max_inbox=parts.get("max_inbox"),
            apart=self.apart,
            expires_in=parts.get("expires_in"),
        )
        return PullMessages(
            config=config,
            inbox=parts.get("inbox", self.inbox),
            consumer=parts.get("consumer", self.consumer),
            enqueue=parts.get("enqueue", self.enqueue),
            facts=self.facts.append,
            order=self.order,
            numbers=self.numbers(**parts),
            window=parts.get("window"),
            times=self.pull_times,
        )

    def process(self, handler: Any, **parts: Any) -> OneByOne:
        return OneByOne(self.messages(handler, **parts))

    def messages(
        self, handler: Any, *, envelope: str = "handler", max_attempts: int = 20, **parts: Any
    ) -> MessageRows:
        backoff = parts.get("backoff", Backoff(initial=timedelta(seconds=10)))
        longest = parts.get("longest", timedelta(hours=1))
        policy = RetryPolicy(max_attempts=max_attempts, backoff=backoff, longest=longest)
        config = MessageConfig(
            context=self.context,
            subscription=self.subscription,
            envelope=envelope,
            policy=policy,
            acked=self.settle == "inbox",
            nak=parts.get("nak", False),
            error_text=parts.get("error_text", False),
        )
        publisher = parts.get("publisher", self.publisher)
        kind: Any = FunctionRows if isinstance(handler, PythonEventHandler) else MessageRows
        return kind(
            config=config,
            inbox=parts.get("inbox", self.inbox),
            handler=handler,
            consumer=parts.get("consumer", self.consumer),
            dead_letters=self.dead_letters_of(publisher, parts.get("stored")),
            facts=self.facts.append,
            next_of_key=self.order and NextOfKey(self.order, self.consumer, self.enqueue),
            window=parts.get("window"),
            lease=parts.get("lease", self.lease),
            circuit=parts.get("circuit"),
            waits=parts.get("waits"),
        )

    def recording(self, records: Any = None) -> RecordIncidents:
        records = records or PostgresIncidents(self.pool.connection)
        return RecordIncidents(self.context, records, self.facts.append)

    def dead_letters_of(self, publisher: Any, stored: Any = None) -> RouteToDeadLetter:
        """What routes letters. As in a fleet, the context's DLQ stream is known as a stream of letters."""
        return RouteToDeadLetter(
            self.context,
            publisher,
            self.facts.append,
            stream=self.dlq,
            stored=stored or NatsStreamLookup(self.nats),
            incidents=self.recording(),
            letter_streams=[self.dlq],
        )

    def chunk(self, handler: Any, **parts: Any) -> RunChunk:
        claims = parts.pop("claims", None) or PostgresChunks(self.pool, ordered=self.order is not None)
        ask_all = getattr(handler, "handle_all", None) or side_by_side(handler)
        rows = ChunkRows(self.messages(handler, **parts), claims, ask_all)
        return RunOnLoop(rows, rows.settle)

    def recovery(self, filter_subject: str | None = None, **parts: Any) -> Recovery:
        reader = StreamReader(
            self.nats,
            stream=self.stream,
            durable=self.durable,
            filter_subject=filter_subject or f"{self.name}.event.>",
        )
        return Recovery(
            context=self.context,
            subscription=self.subscription,
            stream=self.stream,
            inbox=parts.get("inbox", self.inbox),
            consumer=parts.get("consumer", self.consumer),
            reader=parts.get("reader", reader),
            pull=self.pull(),
            facts=self.facts.append,
            numbers=self.numbers(**parts),
            limits=self.recovery_limits,
            on_receipt=self.settle == "inbox",
            window=parts.get("window"),
        )

    def lossy(self) -> Lossy:
        return Lossy(self.nats, stream=self.stream, durable=self.durable)

    # --- what happens to it ---

    async def create_durable(self, **settings: Any) -> None:
        config = {"filter_subject": f"{self.name}.event.>", "ack_wait": 120, "ack_policy": "explicit", **settings}
        await self.js.add_consumer(self.stream, ConsumerConfig(durable_name=self.durable, **config))

    async def create_dlq(self) -> None:
        await self.js.add_stream(StreamConfig(name=self.dlq, subjects=[f"{self.context}.dlq.>"]))

    async def send(self, body: bytes | None = None, subject: str | None = None, **headers: str) -> UUID:
        """Publish a message to the stream; an underscore in a header's name stands for a hyphen."""
        message_id = uuid4()
        if body is None:
            content: dict[str, Any] = {"event_type": "vibe_created", "event_version": 1, "payload": {}}
            content |= {"message_id": str(message_id), "subject": subject or self.subject}
            body = json.dumps(content).encode()
        own = {name.replace("_", "-"): value for name, value in headers.items()}
        named = {"Nats-Msg-Id": str(message_id)} | own
        await self.js.publish(subject or self.subject, body, headers=named)
        return message_id

    async def lose(self, count: int = 1) -> None:
        """Have messages delivered to a worker that dies with them."""
        lost = await self.js.pull_subscribe_bind(self.durable, self.stream)
        assert len(await lost.fetch(count, timeout=5)) == count
        await lost.unsubscribe()

    async def fetch(self) -> Sequence[Delivery]:
        """Take whatever is there off the stream, as a pull job does."""
        return [*await self.consumer.fetch(100, timedelta(milliseconds=300)), *await self.consumer.finish()]

    async def received(self, body: bytes | None = None, **headers: str) -> UUID:
        """Send a message and put it into the inbox; returns its id."""
        message_id = await self.send(body, **headers)
        await self.pull().accept(await self.fetch())
        return message_id

    # --- looking ---

    async def query(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        """What another connection sees."""
        async with await psycopg.AsyncConnection.connect(
            self.url, autocommit=True, row_factory=dict_row
        ) as connection:
            cursor = await connection.execute(sql, parameters)
            return await cursor.fetchall() if cursor.description else []

    async def row(self, message_id: UUID) -> dict[str, Any]:
        return (await self.query("SELECT * FROM inbox_messages WHERE message_id = %s", message_id))[0]

    async def rows(self) -> list[dict[str, Any]]:
        return await self.query("SELECT * FROM inbox_messages ORDER BY stream_seq")

    async def unacked(self) -> int:
        """How many messages JetStream has delivered and not seen acknowledged."""
        return await unacknowledged(self.nats, self.stream, self.durable)

    async def acked(self) -> None:
        """Wait until JetStream has seen every delivered message acknowledged."""

        async def none_left() -> bool:
            return await self.unacked() == 0

        await eventually("all are acknowledged", none_left)

    async def dead_letters(self) -> list[dict[str, Any]]:
        """The dead letters' bodies in order, headers under ``_headers``, subject under ``_subject``."""
        last = (await self.js.stream_info(self.dlq)).state.last_seq
        letters = [await self.js.get_msg(self.dlq, seq) for seq in range(1, last + 1)]
        return [{**json.loads(it.data), "_headers": it.headers, "_subject": it.subject} for it in letters]


async def unacknowledged(connection: NatsConnection, stream: str, durable: str) -> int:
    """How many messages a consumer has delivered and not seen acknowledged.

    The server takes acknowledgements from a queue of the consumer. What it answers to the last of them, about a
    message that there is not, comes after all those before.
    """
    client = await connection.client()
    await client.request(f"$JS.ACK.{stream}.{durable}.1.{10**9}.{10**9}.0.0", b"+WPI", timeout=30)
    return int((await client.jetstream().consumer_info(stream, durable)).num_ack_pending)


async def another(sub: Subscription, name: str) -> Subscription:
    """A second subscription to the same messages, with a durable of its own. It ends with the first one."""
    other = copy.copy(sub)
    other.subscription = other.durable = name
    other.apart, other.facts, other.enqueued = True, [], []
    other.consumer = NatsJetStreamConsumer(sub.nats, stream=sub.stream, durable=name)
    await other.create_durable()
    return other


@asynccontextmanager
async def subscribed(url: str, nats_url: str, **durable: Any) -> AsyncIterator[Subscription]:
    """A subscription with its stream, DLQ and durable, connected; ``durable`` are settings of the consumer."""
    sub = Subscription(url, nats_url)
    sub.pool = Pool(url, max_size=6, application_name="consumer")
    await sub.pool.open()
    sub.inbox = PostgresInboxAdapter(sub.pool)
    sub.nats = NatsConnection(nats_url)
    sub.consumer = NatsJetStreamConsumer(sub.nats, stream=sub.stream, durable=sub.durable)
    sub.publisher = NatsJetStreamPublisher(sub.nats, ack_timeout=timedelta(seconds=30))
    admin = await nats.connect(nats_url)
    sub.js = admin.jetstream()
    try:
        await sub.js.add_stream(StreamConfig(name=sub.stream, subjects=[f"{sub.name}.>"]))
        await sub.create_dlq()
        await sub.create_durable(**durable)
        yield sub
    finally:
        await sub.nats.close()
        await sub.pool.close()
        await admin.close()
