"""CMD-051 for plain Python functions, in the thread that took the message.

Claiming begins the function's transaction and settling ends it, each in one round trip. The event loop hears of
what is done, many messages at a time, and is asked only about what does not go well. A function that outlives its
time keeps the thread; the message is tried again all the same, and ``relieve`` puts another thread in its place.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

from consumer import process
from consumer.finished import finished
from consumer.inprocess import Prepared, PythonEventHandler
from consumer.process import ProcessInboxMessage
from relay.adapters.postgres.handling import Claimed, Settlement
from relay.adapters.postgres.inbox import PostgresInboxAdapter, claimed
from relay.domain.errors import ClaimLost, DatabaseUnreachable, Outage
from relay.domain.model import HandlerResult
from relay.domain.policies import Ack, DeadLetter, Disposition
from relay.failpoints import reach
from relay.handling.calls import answer, timed_out
from relay.handling.threads import LoopThread
from relay.handling.watch import Overdue, Watch
from relay.ports import ClaimedMessage

#: Brings a message to a queue after a while.
Later = Callable[[UUID, timedelta], Awaitable[None]]


class ProcessDirectly:
    """Handles one message. Safe to run twice at once for the same id: the claim admits one."""

    def __init__(
        self,
        one: ProcessInboxMessage,
        inbox: PostgresInboxAdapter,
        functions: PythonEventHandler,
        loop: LoopThread,
        relieve: Callable[[threading.Thread], Any],
        later: Later,
    ) -> None:
        self._one = one
        self._inbox = inbox
        self._functions = functions
        self._loop = loop
        self._relieve = relieve
        self._later = later
        self._watch = Watch()
        self.finished = finished(one, loop.loop)

    def process(self, message_id: UUID) -> timedelta | None:
        """Do as `ProcessInboxMessage.process` does."""
        token, command = self._inbox.claim_command(message_id, process.LEASE, self._one.max_attempts)
        taken = self._functions.transactions.claim(command, begin=self._functions.writes)
        if taken is None:
            return None
        try:
            reach("after_message_claim")
            return self._handle(claimed(token, taken.row), taken)
        finally:
            taken.leave()

    def _handle(self, claim: ClaimedMessage, taken: Claimed) -> timedelta | None:
        request = claim.row.condemned or self._one.request(claim)
        if isinstance(request, DeadLetter):
            return self._conclude(claim, request, taken)
        begun = time.perf_counter()
        prepared = self._functions.prepared(request)
        if isinstance(prepared, Prepared) and prepared.signature.is_async:
            taken.leave()
            return self._loop.run_coroutine(self._one.handle(claim))
        try:
            result = prepared if isinstance(prepared, HandlerResult) else self._call(prepared, claim, taken)
        except Overdue:
            return None
        disposition = self._one.decided(result, claim, time.perf_counter() - begun)
        if isinstance(disposition, Ack) and (disposition.settled or self._settle(claim, taken)):
            self.finished.add(claim)
            return None
        return None if isinstance(disposition, Ack) else self._conclude(claim, disposition, taken)

    def _settle(self, claim: ClaimedMessage, taken: Claimed) -> bool:
        """Record that a message is processed of which no transaction says so. False when the claim is lost."""
        taken.leave()
        try:
            self._functions.transactions.conclude(Settlement.of_message(claim.row.message_id, claim.token))
        except ClaimLost:
            return False
        return True

    def _call(self, prepared: Prepared, claim: ClaimedMessage, taken: Claimed) -> HandlerResult:
        """Call the function. Raises Overdue when its time was up, and the message is taken care of."""
        if not prepared.signature.in_transaction:
            taken.leave()

        def call() -> HandlerResult:
            try:
                with prepared.member.context.use():
                    return prepared.member.call.run_in_thread(taken)
            except BaseException as error:
                return answer(error)

        thread, seconds = threading.current_thread(), self._functions.timeout

        def overdue() -> None:
            self._relieve(thread)
            asyncio.run_coroutine_threadsafe(self._give_up(claim, seconds), self._loop.loop)

        every = process.LEASE.total_seconds() / 4
        return self._watch.call(call, seconds, every, lambda: self._renew(claim), overdue)

    async def _give_up(self, claim: ClaimedMessage, seconds: float) -> None:
        """Settle a message whose function takes too long, and have it tried again; the sweep does if we cannot."""
        with suppress(Outage):
            disposition = self._one.decided(timed_out(seconds), claim, seconds)
            delay = await self._one.conclude(claim, disposition)
            if delay is not None:
                await self._later(claim.row.message_id, delay)

    def _conclude(self, claim: ClaimedMessage, disposition: Disposition, taken: Claimed) -> timedelta | None:
        """Have a verdict that is not settled yet recorded."""
        taken.leave()
        return self._loop.run_coroutine(self._one.conclude(claim, disposition))

    def _renew(self, claim: ClaimedMessage) -> None:
        """Extend the claim. Whether that succeeds is not waited for: the token fences us off when it is lost."""

        async def renew() -> None:
            with suppress(DatabaseUnreachable):
                await self._inbox.renew(claim, process.LEASE)

        asyncio.run_coroutine_threadsafe(renew(), self._loop.loop)
