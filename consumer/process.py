"""CMD-051 ProcessInboxMessage: claim → handler → policy → settle → acknowledge."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID

from consumer.order import GoOn
from relay.commands.deadletter import FailedMessage, RouteToDeadLetter
from relay.domain.envelopes import handler_request
from relay.domain.errors import BrokerUnreachable, MalformedMessage, Outage
from relay.domain.facts import FactSink, HandlerAnswered, MessageProcessed, MessageRetried
from relay.domain.model import HandlerResult
from relay.domain.policies import Ack, DeadLetter, DeadLetterClass, Disposition, Retry, decide
from relay.domain.retry import RetryPolicy
from relay.failpoints import reach
from relay.leases import kept
from relay.ports import (
    ClaimedMessage,
    EventHandler,
    HandlerRequest,
    InboxRepository,
    JetStreamConsumer,
)

#: A claim outlives a dead worker by at most this time; a live worker renews it during a call.
LEASE: Final = timedelta(seconds=8)
_DEAD_LETTER_PAUSE: Final = timedelta(seconds=2)
#: Takes a processed message, and whether its row is already marked so.
Finish: TypeAlias = Callable[[ClaimedMessage, bool], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    """How one subscription treats its messages.

    ``acked``: the pull job has already acknowledged every message (``settle = "inbox"``).
    ``error_text``: whether to keep the full text of answers and exceptions, which may show payload.
    """

    context: str
    subscription: str
    envelope: str
    policy: RetryPolicy
    acked: bool = False
    error_text: bool = False


class ProcessInboxMessage:
    """Handles one message. Two runs at once for the same id are safe: only one gets the claim."""

    def __init__(
        self,
        config: ProcessConfig,
        inbox: InboxRepository,
        handler: EventHandler,
        consumer: JetStreamConsumer,
        dead_letters: RouteToDeadLetter,
        facts: FactSink,
        go_on: GoOn | None = None,
    ) -> None:
        self._config = config
        self._inbox = inbox
        self._handler = handler
        self._consumer = consumer
        self._dead_letters = dead_letters
        self._facts = facts
        self._go_on = go_on

    async def process(
        self,
        message_id: UUID,
        answered: Callable[[], None] = lambda: None,
        finish: Finish | None = None,
    ) -> timedelta | None:
        """Process a message; returns after how long to try again, or None when nothing is left to do.

        ``answered`` is called when the handler has answered. ``finish``, if given, does what is left after the
        message is processed. Raises DatabaseUnreachable; as LeaseOver, when the call was cancelled because its
        claim could not be renewed. The row then keeps its claim until the lease is over.
        """
        claim = await self._inbox.claim(message_id, LEASE, self.max_attempts)
        if claim is None:
            return None
        reach("after_message_claim")
        return await self.handle(claim, answered, finish)

    @property
    def max_attempts(self) -> int:
        """How often a message is tried."""
        return self._config.policy.max_attempts

    @property
    def ordered(self) -> bool:
        """Whether a message may have to wait for the one before it."""
        return self._go_on is not None

    async def handle(
        self,
        claim: ClaimedMessage,
        answered: Callable[[], None] = lambda: None,
        finish: Finish | None = None,
    ) -> timedelta | None:
        """Process a claimed message, as `process` does."""
        disposition = claim.row.condemned or await self._ask(claim)
        answered()
        return await self.conclude(claim, disposition, finish)

    async def conclude(
        self,
        claim: ClaimedMessage,
        disposition: Disposition,
        finish: Finish | None = None,
    ) -> timedelta | None:
        """Record a verdict and do what follows from it."""
        match disposition:
            case Ack(settled):
                if finish is not None:
                    finish(claim, settled)
                elif settled or await self._inbox.mark_processed(claim, disposition):
                    await self.finish([claim])
            case DeadLetter():
                return await self._dead_letter(claim, disposition)
            case Retry(delay):
                return await self._put_off(claim, disposition, delay)
        return None

    async def _ask(self, claim: ClaimedMessage) -> Disposition:
        request = self.request(claim)
        if isinstance(request, DeadLetter):
            return request
        begun = time.perf_counter()
        async with kept(LEASE, claim.since, lambda: self._inbox.renew(claim, LEASE)):
            result = await self._handler.handle(request)
        return self.decided(result, claim, time.perf_counter() - begun)

    def decided(self, result: HandlerResult, claim: ClaimedMessage, seconds: float) -> Disposition:
        """Decide what follows from an answer; the handler took ``seconds`` to give it."""
        self.tell_answered(seconds)
        reach("after_handler_before_mark")
        return self.decide(result, claim)

    def tell_answered(self, seconds: float) -> None:
        """Report the fact that the handler has answered."""
        config = self._config
        self._facts(HandlerAnswered(context=config.context, subscription=config.subscription, seconds=seconds))

    def request(self, claim: ClaimedMessage) -> HandlerRequest | DeadLetter:
        """Return the request for the handler, or a dead letter when the message cannot be read."""
        row = claim.row
        try:
            body = handler_request(self._config.envelope, row.subject, row.headers, row.body, row.occurred_at)
        except MalformedMessage as error:
            # The pull job could read it, so the subscription's envelope has changed since.
            return DeadLetter(str(error), DeadLetterClass.POISON)
        return HandlerRequest(
            message_id=row.message_id,
            subject=row.subject,
            event_type=row.event_type or "",
            event_version=row.event_version or 1,
            correlation_id=row.correlation_id,
            attempt=claim.attempts,
            body=body,
            headers=row.headers,
            token=claim.token,
        )

    def decide(self, result: HandlerResult, claim: ClaimedMessage) -> Disposition:
        """Apply the subscription's policy to an answer."""
        shown = result.in_full() if self._config.error_text else result
        return decide(shown, claim.attempts, self._config.policy, random.random())  # noqa: S311

    async def finish(self, claims: Sequence[ClaimedMessage]) -> None:
        """Acknowledge processed messages. Their rows are committed first, so a crash in between loses nothing."""
        if not claims:
            return
        reach("after_commit_before_ack")
        for claim in claims:
            self._facts(MessageProcessed(**self._about(claim)))
        if self._go_on is not None:
            await self._go_on.after(*(claim.row for claim in claims))
        await self._ack(claims)

    def _about(self, claim: ClaimedMessage) -> dict[str, Any]:
        return {
            "context": self._config.context,
            "subscription": self._config.subscription,
            "message_id": claim.row.message_id,
            "correlation_id": claim.row.correlation_id,
            "causation_id": claim.row.causation_id,
            "attempts": claim.attempts,
        }

    async def _put_off(self, claim: ClaimedMessage, disposition: Retry, delay: timedelta) -> timedelta | None:
        """Record the error without an ack (POL-047-007): the row owns the next attempt."""
        if not await self._inbox.record_error(claim, disposition):
            return None
        self.tell_retried(claim, disposition)
        return delay

    def tell_retried(self, claim: ClaimedMessage, disposition: Retry) -> None:
        """Report the fact that a message will be retried."""
        seconds, error = disposition.delay.total_seconds(), disposition.error
        self._facts(MessageRetried(**self._about(claim), delay_seconds=seconds, error=error))

    async def _dead_letter(self, claim: ClaimedMessage, disposition: DeadLetter) -> timedelta | None:
        """Apply POL-047-006. The verdict is recorded first, so after an outage the handler is not called again."""
        if claim.row.condemned is None and not await self._inbox.condemn(claim, disposition):
            return None
        return await self.route(claim, disposition)

    async def route(self, claim: ClaimedMessage, disposition: DeadLetter) -> timedelta | None:
        """Store the dead letter of a recorded verdict; returns after how long to try again if that failed."""
        reach("after_condemn")
        try:
            await self._dead_letters.route(_failed(claim), disposition)
        except Outage:
            await self._inbox.release(claim, _DEAD_LETTER_PAUSE)
            return _DEAD_LETTER_PAUSE
        reach("before_dlq_commit")
        if await self._inbox.mark_dead_lettered(claim):
            poison = disposition.reason if disposition.kind is DeadLetterClass.POISON else None
            await self._ack([claim], poison)
            if self._go_on is not None:
                await self._go_on.after_death(claim.row)
        return None

    async def _ack(self, claims: Sequence[ClaimedMessage], poison: str | None = None) -> None:
        """Acknowledge messages, or terminate one that is poison."""
        if self._config.acked:
            return
        replies = [claim.row.ack_subject for claim in claims]
        try:
            if poison is None:
                await self._consumer.ack(replies)
            else:
                await self._consumer.terminate(replies, poison)
        except BrokerUnreachable:
            # The rows are finished, so the next run of recovery acknowledges them.
            return


def _failed(claim: ClaimedMessage) -> FailedMessage:
    row = claim.row
    return FailedMessage(
        message_id=row.message_id,
        subscription=row.subscription,
        original_subject=row.subject,
        stream=row.stream,
        stream_seq=row.stream_seq,
        attempts=claim.attempts,
        headers=dict(row.headers),
        body=row.body,
        event_type=row.event_type,
        correlation_id=row.correlation_id,
        causation_id=row.causation_id,
        requeues=claim.requeues,
    )
