"""Inbox messages as the runners of `relay.execution` see them (CMD-051 ProcessInboxMessage)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

from consumer.circuit import KeepCircuit
from consumer.functions import PythonEventHandler
from consumer.key_order import NextOfKey
from consumer.large import BringPayloads
from consumer.personal import OpenRequests
from consumer.waiting import WaitForVersion
from consumer.window import Window
from relay import jobs
from relay.adapters.dramatiq.runtime import WorkerRuntime, event_loop
from relay.adapters.postgres.controls import KnownControls
from relay.adapters.postgres.inbox import PostgresInboxAdapter, claim_many_command, claimed, ids_and_tokens
from relay.adapters.postgres.limited_inbox import LimitedInbox
from relay.adapters.postgres.pipeline import Command
from relay.commands.deadletter import RouteToDeadLetter
from relay.domain import traceparent
from relay.domain.controls import NO_LIMIT, UNCONTROLLED, Controls, Limit, What
from relay.domain.envelopes import Envelope, Request, decode, handler_request
from relay.domain.errors import BrokerUnreachable, MalformedMessage, Outage
from relay.domain.facts import FactSink, HandlerAnswered, MessageExpired, MessageProcessed, MessageRetried, Traced
from relay.domain.large import Reference
from relay.domain.model import Away, HandlerResult, Verdict
from relay.domain.personal import MARK
from relay.domain.policies import (
    Ack,
    DeadLetter,
    DeadLetterClass,
    Disposition,
    Doubt,
    Retry,
    TooLate,
    Unhandled,
    decide,
)
from relay.domain.reasons import in_short
from relay.domain.retry import Later, RetryPolicy
from relay.domain.tasks import PutOff
from relay.execution.calls import PreparedCall
from relay.execution.prefetch import PrefetchOnLoop, Waiting
from relay.execution.rows import Decided, Terms, Unclaimed
from relay.execution.tallies import Tally
from relay.failpoints import reach
from relay.ports import (
    ClaimedMessage,
    EventHandler,
    HandlerRequest,
    InboxRow,
    InboxSettlement,
    JetStreamConsumer,
)

#: If a slot of a rate is free within this time, the message waits here: delays of a queue are too coarse.
_SOON: Final = timedelta(milliseconds=500)
_DONE: Final = (Verdict.PROCESSED, Verdict.ALREADY_PROCESSED)
#: After this time a dead letter that could not be stored is tried again.
_DEAD_LETTER_PAUSE: Final = timedelta(seconds=2)
#: How long a claim of a message holds if nobody renews it.
LEASE: Final = timedelta(seconds=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageConfig:
    """How one subscription treats its messages.

    ``acked``: the pull job has already acknowledged every message (``settle = "inbox"``).
    ``nak``: each failure is reported to JetStream (``on_failure = "nak"``). ``error_text``: whether to keep the
    full text of answers and exceptions, which may show payload. ``limit``: what is configured; an operator's limit
    goes before it.
    """

    context: str
    subscription: str
    envelope: Envelope | str
    policy: RetryPolicy
    acked: bool = False
    nak: bool = False
    error_text: bool = False
    limit: Limit = NO_LIMIT


@dataclass(slots=True, kw_only=True)
class MessageRows:
    """The messages of one subscription: how they are claimed and asked for, and what follows from an answer.

    ``ahead``: set if the loop claims messages before their turn. ``next_of_key``: set if the subscription is
    ordered. ``circuit``: set if an outage of its handler costs no attempts. ``window``: set if messages are
    acknowledged after their handler. ``lease``: a claim outlives a dead worker by at most this time; a live worker
    renews it during a call. ``controls``: what operators have limited. With a limit, ``limited`` claims. A pause
    needs nothing here: the statements that claim know of it. ``tally``: counts for the history. ``opens``: set if
    the handler gets personal values in plain text. ``brings``: what brings payloads that are elsewhere.
    ``waits``: set if messages without a handler here may wait.
    """

    config: MessageConfig
    inbox: InboxSettlement
    handler: EventHandler
    consumer: JetStreamConsumer
    dead_letters: RouteToDeadLetter
    facts: FactSink
    next_of_key: NextOfKey | None = None
    circuit: KeepCircuit | None = None
    window: Window | None = None
    ahead: PrefetchOnLoop[UUID, ClaimedMessage] | None = None
    tally: Tally = field(default_factory=Tally)
    lease: timedelta = LEASE
    controls: KnownControls | None = None
    limited: LimitedInbox | None = None
    enqueue: Callable[[Sequence[UUID]], Awaitable[None]] | None = None
    opens: OpenRequests | None = None
    brings: BringPayloads | None = None
    waits: WaitForVersion | None = None

    after_claim = "after_message_claim"

    @property
    def max_attempts(self) -> int:
        """How often a message is tried."""
        return self.config.policy.max_attempts

    @property
    def ordered(self) -> bool:
        """Whether a message may have to wait for the one before it."""
        return self.next_of_key is not None

    @property
    def prefetches(self) -> bool:
        """Whether a claim may come before its turn.

        It could use up a single attempt. With order, only the head of a key may run.
        """
        return not self.ordered and self.max_attempts > 1

    def limit(self) -> Limit | None:
        """The limit in force, maybe none; None if that is not known now. Safe in any thread."""
        known = UNCONTROLLED if self.controls is None else self.controls.look()
        return None if known is None else self._limit_of(known)

    async def limit_now(self) -> Limit:
        """The limit in force, maybe none. Raises DatabaseUnreachable."""
        limit = self.limit()
        if limit is None and self.controls is not None:
            limit = self._limit_of(await self.controls.now())
        return limit or NO_LIMIT

    def _limit_of(self, controls: Controls) -> Limit:
        return controls.limit(What.SUBSCRIPTION, self.config.subscription).over(self.config.limit)

    async def claim(self, message_id: UUID) -> ClaimedMessage | Unclaimed[timedelta] | None:
        """See `SingleRows`."""
        if (limit := self.limit()) is None:
            limit = await self.limit_now()
        if limit and self.limited is not None:
            return await self._within(limit, message_id, self.limited)
        if self.ahead is not None:
            return await self.ahead.claim(message_id)
        return await self.inbox.claim(message_id, self.lease, self.max_attempts)

    async def _within(
        self, limit: Limit, message_id: UUID, limited: LimitedInbox
    ) -> ClaimedMessage | Unclaimed[timedelta] | None:
        """Claim a message if the limit lets it begin; wait here if its slot of the rate is near."""
        while True:
            found = await limited.claim(message_id, self.lease, self.max_attempts, limit)
            if not isinstance(found, PutOff):
                return found
            if found.waits_for != "turn" or found.delay > _SOON:
                return Unclaimed(Later.of(found.delay, f"waits for {found.waits_for}"))
            await asyncio.sleep(found.delay.total_seconds())

    async def _made_room(self, ended: int) -> None:
        """So many have ended: if a limit keeps others waiting for that, try the next."""
        limit = self.limit()
        if self.limited is None or self.enqueue is None or (limit is not None and limit.concurrency is None):
            return
        with suppress(Outage):
            limit = limit or await self.limit_now()
            for _ in range(ended if limit.concurrency is not None else 0):
                ids = await self.limited.next()
                if not ids:
                    return
                await self.enqueue(ids)

    async def renew(self, claim: ClaimedMessage) -> bool:
        """See `SingleRows`."""
        return await self.inbox.renew(claim, self.lease)

    def request(self, claim: ClaimedMessage) -> HandlerRequest | Decided[Disposition]:
        """Return the request for the handler, or a dead letter: recorded before, or the message cannot be read."""
        row = claim.row
        if row.rejected is not None:
            return Decided(row.rejected)
        try:
            prepared, reference = self._read(row), Reference.of(row.headers)
        except MalformedMessage as error:
            # The pull job could read it. So the subscription's envelope has changed since then.
            return Decided(DeadLetter(str(error), DeadLetterClass.POISON))
        event = prepared.event
        return HandlerRequest(
            message_id=row.message_id,
            subject=row.subject,
            event_type=row.event_type or "",
            event_version=row.event_version or 1,
            correlation_id=row.correlation_id,
            attempt=claim.attempts,
            body=prepared.body,
            headers=row.headers,
            token=claim.token,
            originals=event.originals,
            # Of two subscriptions with one service behind them, neither must look like a repeat of the other.
            idempotency_key=prepared.idempotency_key if row.source_id is None else str(row.message_id),
            actor=event.actor,
            traceparent=_span(claim, event.traceparent),
            source_id=row.source_id,
            event=event,
            personal=self.opens is not None and MARK in row.body,
            reference=reference,
        )

    def _read(self, row: InboxRow) -> Request:
        """Return what a message says, and the body for its handler. Raises MalformedMessage."""
        return handler_request(self.config.envelope, row.subject, row.headers, row.body, row.occurred_at)

    async def ask(self, request: HandlerRequest) -> HandlerResult:
        """Call the handler."""
        if request.reference is not None and self.brings is not None:
            return await self.brings.before(self.ask, request, personal=self.opens is not None)
        if request.personal and self.opens is not None:
            opened = await self.opens.open(request)
            if isinstance(opened, HandlerResult):
                return opened
            request = opened
        return await self.handler.handle(request)

    def decide(self, result: HandlerResult, claim: ClaimedMessage, seconds: float) -> Disposition:
        """Report the answer, and apply the subscription's policy to it."""
        config = self.config
        about = {"context": config.context, "subscription": config.subscription}
        waited = _waited(claim)
        done = result.verdict in _DONE
        self.tally.took(seconds)
        traced = _traced(claim, result)
        self.facts(HandlerAnswered(**about, seconds=seconds, traced=traced, waited=waited if done else None))
        reach("after_handler_before_mark")
        if done:
            return Ack(result.settled)
        shown = result.in_full() if config.error_text else result
        age = timedelta(seconds=waited or 0.0)
        verdict = decide(shown, claim.attempts, config.policy, random.random(), age)  # noqa: S311
        if isinstance(verdict, Ack):
            return verdict
        verdict = replace(verdict, seconds=seconds)
        if self.circuit is None or result.away is Away.NO:
            return verdict
        later = verdict.delay if isinstance(verdict, Retry) and result.delay and not result.counts else None
        return replace(verdict, doubt=Doubt(shown.detail, surely=result.away is Away.SURELY, later=later))

    async def mark(self, claims: Sequence[ClaimedMessage]) -> Sequence[ClaimedMessage]:
        """Mark messages as processed."""
        return await self.inbox.mark_all_processed(claims)

    async def finish(self, claims: Sequence[ClaimedMessage]) -> None:
        """Acknowledge processed messages. Their rows are committed first, so a crash in between loses nothing."""
        if not claims:
            return
        reach("after_commit_before_ack")
        for claim in claims:
            self.facts(MessageProcessed(**self._about(claim)))
        if self.next_of_key is not None:
            await self.next_of_key.after(*(claim.row for claim in claims))
        await self._ack(claims)
        if self.circuit is not None:
            await self.circuit.answered(claims)
        await self._made_room(len(claims))

    def _about(self, claim: ClaimedMessage) -> dict[str, Any]:
        return {
            "context": self.config.context,
            "subscription": self.config.subscription,
            **claim.row.shown,
            "attempts": claim.attempts,
            "trace_id": traceparent.trace_id(traceparent.find(claim.row.headers)),
        }

    async def judged(self, claim: ClaimedMessage, verdict: Retry | DeadLetter) -> Retry | DeadLetter:
        """The verdict on a failure, by what is known of the handler, and of other workers."""
        if isinstance(verdict, Unhandled) and self.waits is not None:
            verdict = await self.waits.judged(claim, verdict)
        return verdict if self.circuit is None else await self.circuit.judged(claim, verdict)

    async def conclude(self, claim: ClaimedMessage, verdict: Retry | DeadLetter) -> timedelta | None:
        """Record a failure without an ack (POL-047-007): the row owns the next attempt.

        It keeps its place in JetStream's window as far as `Window` allows. The verdict of a dead letter is
        recorded first (POL-047-006): after an outage no handler is called again.
        """
        verdict = await self.judged(claim, verdict)
        recorded = (
            await self.inbox.record_error(claim, verdict)
            if isinstance(verdict, Retry)
            else claim.row.rejected is not None or await self.inbox.reject(claim, verdict)
        )
        return await self.follow(claim, verdict) if recorded else None

    async def follow(self, claim: ClaimedMessage, verdict: Retry | DeadLetter) -> timedelta | None:
        """Do what follows from a recorded failure; returns after how long to try again."""
        await self._made_room(1)
        if isinstance(verdict, TooLate):
            await self._expire(claim)
            return None
        self.tally.failed += 1
        if isinstance(verdict, DeadLetter):
            return await self._route(claim, verdict)
        seconds = verdict.delay.total_seconds()
        self.facts(MessageRetried(**self._about(claim), delay_seconds=seconds, error=verdict.error))
        if verdict.waits:
            self._waits()
            return None
        if self.config.nak:
            # The redelivery finds its row in the inbox, so it changes nothing but the row's reply subject.
            with suppress(BrokerUnreachable):
                await self.consumer.nak([claim.row.ack_subject], verdict.delay)
        self._waits()
        return Later.of(verdict.delay, in_short(verdict.error))

    async def _expire(self, claim: ClaimedMessage) -> None:
        """Settle a message that came too late. As a processed one it is acknowledged, and its key goes on."""
        if not await self.inbox.expire(claim):
            return
        self.facts(MessageExpired(**self._about(claim)))
        if self.next_of_key is not None:
            await self.next_of_key.after(claim.row)
        await self._ack([claim])

    def _waits(self) -> None:
        if self.window is not None:
            self.window.wait_begins()

    async def _route(self, claim: ClaimedMessage, verdict: DeadLetter) -> timedelta | None:
        """Store a dead letter; returns after how long to try again if that failed."""
        reach("after_reject")
        try:
            await self.dead_letters.route(claim, verdict)
        except Outage as error:
            await self.dead_letters.delay(claim, error)
            await self.inbox.release(claim, _DEAD_LETTER_PAUSE)
            self._waits()
            return _DEAD_LETTER_PAUSE
        reach("before_dlq_commit")
        if await self.inbox.mark_dead_lettered(claim):
            await self._ack([claim], self._final(verdict))
            if self.next_of_key is not None:
                await self.next_of_key.after_death(claim.row)
                self._waits()
        return None

    def _final(self, verdict: DeadLetter) -> str | None:
        """Return the reason of a TERM, without text of a handler; None if a dead letter is acknowledged."""
        if verdict.reason.startswith(MalformedMessage.code):
            return verdict.reason
        return verdict.kind.value if self.config.nak else None

    async def _ack(self, claims: Sequence[ClaimedMessage], reason: str | None = None) -> None:
        """Acknowledge messages, or terminate one for a reason."""
        if self.config.acked:
            return
        replies = [claim.row.ack_subject for claim in claims]
        try:
            if reason is None:
                await self.consumer.ack(replies)
            else:
                await self.consumer.terminate(replies, reason)
        except BrokerUnreachable:
            # The rows are finished, so the next run of recovery acknowledges them.
            return


def _span(claim: ClaimedMessage, received: str | None) -> str | None:
    """The ``traceparent`` of a call: its trace, and a span of its own."""
    if received is None:
        return None
    return traceparent.next_hop(received, traceparent.call_span(claim.token, claim.row.message_id))


def _waited(claim: ClaimedMessage) -> float | None:
    """How long a message has been in the inbox, in seconds."""
    at = claim.received_at
    return None if at is None else max(0.0, time.time() - at.timestamp())


def _traced(claim: ClaimedMessage, result: HandlerResult) -> Traced | None:
    """What a tracer must know about a call; None if its message belongs to no trace."""
    received = traceparent.find(claim.row.headers)
    if received is None or (span := _span(claim, received)) is None:
        return None
    row, shown = claim.row, claim.row.shown
    id, verdict = shown["message_id"] or row.message_id, result.verdict.value
    return Traced(received, span, id, shown["correlation_id"], row.subject, claim.attempts, verdict)


@dataclass(slots=True, kw_only=True)
class FunctionRows(MessageRows):
    """The messages of a subscription with Python functions: worker threads call the plain ones."""

    inbox: PostgresInboxAdapter
    handler: PythonEventHandler
    _terms: Terms | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.handler.plain:
            self._terms = Terms(self.handler.timeout, writes=self.handler.writes, prefetch=self.prefetches)

    def terms(self, _message_id: UUID) -> Terms | None:
        """See `ThreadRows`, as for all that follow. With a limit the loop claims: it can wait for a slot."""
        limit = self.limit()
        return self._terms if limit is not None and not limit else None

    def _read(self, row: InboxRow) -> Request:
        """Return what a message says. A function gets no body."""
        event = decode(self.config.envelope, row.subject, row.headers, row.body)
        return Request(event if event.occurred_at else event._replace(occurred_at=row.occurred_at), b"")

    def call(self, request: HandlerRequest) -> PreparedCall | HandlerResult | None:
        if request.reference is not None and self.brings is not None:
            return None  # it may wait for its payload
        if request.personal and self.opens is not None:
            opened = event_loop().run_coroutine(self.opens.open(request))
            if isinstance(opened, HandlerResult):
                return opened
            request = opened
        return self.handler.prepared(request)

    def claim_command(self, message_id: UUID) -> Command:
        return self.inbox.claim_command(message_id, self.lease, self.max_attempts)

    def prefetch_command(self, message_id: UUID, others: Sequence[UUID]) -> Command:
        return claim_many_command([message_id, *others], [message_id], self.lease, self.max_attempts)

    def unclaim_command(self, claims: Sequence[ClaimedMessage]) -> Command:
        return "inbox/unclaim", ids_and_tokens(claims)

    def read_claim(self, command: Command, row: dict[str, Any], since: float) -> ClaimedMessage:
        return claimed(command, row, since)

    def key(self, claim: ClaimedMessage) -> UUID:
        return claim.row.message_id


def ahead_on_loop(
    rows: MessageRows, inbox: PostgresInboxAdapter, waiting: Waiting[UUID]
) -> PrefetchOnLoop[UUID, ClaimedMessage] | None:
    """What claims messages for the loop before their turn; None if none may be claimed so."""
    if not rows.prefetches:
        return None
    claim = partial(inbox.claim_many, lease=rows.lease, max_attempts=rows.max_attempts)
    alone = partial(inbox.claim_alone, lease=rows.lease, max_attempts=rows.max_attempts)
    return PrefetchOnLoop(claim, alone, inbox.unclaim, waiting)


def waiting_messages(runtime: WorkerRuntime, context: str, subscription: str, limit: int) -> list[UUID]:
    """Return up to ``limit`` messages of a subscription that wait in this process, the next first."""
    messages = runtime.ahead(
        jobs.HANDLE_QUEUE,
        jobs.share(context, subscription),
        lambda message: message.actor_name == jobs.HANDLE_MESSAGE,
        limit,
    )
    return [jobs.handled_id(message) for message in messages]
