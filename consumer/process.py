"""CMD-051 ProcessInboxMessage: claim → handler → policy → settle → acknowledge."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from consumer.order import GoOn
from relay.commands.deadletter import FailedMessage, RouteToDeadLetter
from relay.domain.envelope import handler_request
from relay.domain.errors import BrokerUnreachable, DatabaseUnreachable, MalformedMessage, Outage
from relay.domain.facts import FactSink, MessageProcessed, MessageRetried
from relay.domain.policies import Ack, DeadLetter, DeadLetterClass, Retry, RetryPolicy, decide
from relay.domain.timings import HandlerAnswered
from relay.failpoints import reach
from relay.ports import (
    ClaimedMessage,
    EventHandler,
    HandlerRequest,
    InboxRepository,
    JetStreamConsumer,
)

#: A claim outlives its worker by this much at most; a live worker renews it four times as often.
_LEASE: Final = timedelta(seconds=8)
_DEAD_LETTER_PAUSE: Final = timedelta(seconds=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    """How one subscription treats its messages.

    ``acked``: the pull job has acknowledged every message by the time it gets here (``settle = "inbox"``).
    """

    context: str
    subscription: str
    envelope: str
    policy: RetryPolicy
    acked: bool = False


class ProcessInboxMessage:
    """Handles one message. Safe to run twice at once for the same id: the claim admits one."""

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

    async def process(self, message_id: UUID) -> timedelta | None:
        """Process a message; returns after how long to try again, or None when there is nothing to do.

        Raises DatabaseUnreachable; the row then keeps its claim until the lease is over.
        """
        claim = await self._inbox.claim(message_id, _LEASE, self._config.policy.max_attempts)
        if claim is None:
            return None
        reach("after_message_claim")
        disposition = claim.row.condemned or await self._ask(claim)
        match disposition:
            case Ack():
                await self._finish(claim, disposition)
            case DeadLetter():
                return await self._dead_letter(claim, disposition)
            case Retry(delay):
                return await self._put_off(claim, disposition, delay)
        return None

    async def _ask(self, claim: ClaimedMessage) -> Ack | DeadLetter | Retry:
        row = claim.row
        try:
            body = handler_request(self._config.envelope, row.subject, row.headers, row.body)
        except MalformedMessage as error:
            # It was read when it came: the subscription's envelope has been changed since.
            return DeadLetter(str(error), DeadLetterClass.POISON)
        request = HandlerRequest(
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
        keeper = asyncio.create_task(self._keep(claim))
        begun = time.perf_counter()
        try:
            result = await self._handler.handle(request)
        finally:
            keeper.cancel()
        config, seconds = self._config, time.perf_counter() - begun
        self._facts(HandlerAnswered(context=config.context, subscription=config.subscription, seconds=seconds))
        reach("after_handler_before_mark")
        return decide(result, claim.attempts, self._config.policy, random.random())  # noqa: S311

    async def _keep(self, claim: ClaimedMessage) -> None:
        """Renew the claim while the handler works. Stops when it is lost: the token then fences us off."""
        while True:
            await asyncio.sleep(_LEASE.total_seconds() / 4)
            try:
                if not await self._inbox.renew(claim, _LEASE):
                    return
            except DatabaseUnreachable:
                continue

    async def _finish(self, claim: ClaimedMessage, disposition: Ack) -> None:
        """Processed, then acknowledged: in this order, so that a crash between the two loses nothing."""
        if not disposition.settled and not await self._inbox.mark_processed(claim, disposition):
            return
        reach("after_commit_before_ack")
        self._facts(
            MessageProcessed(
                context=self._config.context,
                subscription=self._config.subscription,
                message_id=claim.row.message_id,
                correlation_id=claim.row.correlation_id,
                attempts=claim.attempts,
            )
        )
        if self._go_on is not None:
            await self._go_on.after(claim.row)
        await self._ack(claim, disposition)

    async def _put_off(self, claim: ClaimedMessage, disposition: Retry, delay: timedelta) -> timedelta | None:
        """No ack (POL-047-007): the row owns the next attempt."""
        if not await self._inbox.record_error(claim, disposition):
            return None
        self._facts(
            MessageRetried(
                context=self._config.context,
                subscription=self._config.subscription,
                message_id=claim.row.message_id,
                correlation_id=claim.row.correlation_id,
                attempts=claim.attempts,
                delay_seconds=delay.total_seconds(),
                error=disposition.error,
            )
        )
        return delay

    async def _dead_letter(self, claim: ClaimedMessage, disposition: DeadLetter) -> timedelta | None:
        """POL-047-006. The verdict is recorded first, so that an outage now does not ask the handler again."""
        if claim.row.condemned is None and not await self._inbox.condemn(claim, disposition):
            return None
        reach("after_condemn")
        try:
            await self._dead_letters.route(_failed(claim), disposition)
        except Outage:
            await self._inbox.release(claim, _DEAD_LETTER_PAUSE)
            return _DEAD_LETTER_PAUSE
        reach("before_dlq_commit")
        if await self._inbox.mark_dead_lettered(claim):
            await self._ack(claim, disposition)
            if self._go_on is not None:
                await self._go_on.after_death(claim.row)
        return None

    async def _ack(self, claim: ClaimedMessage, disposition: Ack | DeadLetter) -> None:
        """Acknowledge, or terminate what no handler was ever asked about."""
        if self._config.acked:
            return
        reply = claim.row.ack_subject
        try:
            match disposition:
                case DeadLetter(reason, DeadLetterClass.POISON):
                    await self._consumer.terminate([reply], reason)
                case _:
                    await self._consumer.ack([reply])
        except BrokerUnreachable:
            # The row is finished: the next look at what JetStream holds open acknowledges it.
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
