"""CMD-051 for plain Python functions, in the thread that took the message.

A message is claimed together with others that wait in this process. If none waits, it is claimed alone. Then the
claim also begins the function's transaction, and the settlement ends it, each in one round trip. The thread
reports finished messages to the event loop, many at a time. The loop marks those that no function's transaction
has marked. Otherwise the thread uses the loop only when something fails. A function that runs past its timeout
keeps the thread. The message is tried again all the same, and ``relieve`` starts another thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from consumer import process
from consumer.finished import finished
from consumer.inprocess import Prepared, PythonEventHandler
from consumer.process import ProcessInboxMessage
from relay.adapters.postgres.handling import Claimed
from relay.adapters.postgres.inbox import PostgresInboxAdapter, claimed, ids_and_tokens
from relay.domain.model import HandlerResult
from relay.domain.policies import Ack, DeadLetter, Disposition
from relay.failpoints import reach
from relay.handling.ahead import Ahead
from relay.handling.attended import Attendance, Attended
from relay.handling.calls import timed_out
from relay.handling.watch import Overdue
from relay.ports import ClaimedMessage
from relay.threads import LoopThread

#: Enqueues a message after a delay.
Later = Callable[[UUID, timedelta], Awaitable[None]]
#: Returns up to so many of the subscription's messages that wait in this process, the next one first.
Waiting = Callable[[int], Sequence[UUID]]


class ProcessDirectly:
    """Handles one message. Two runs at once for the same id are safe: only one gets the claim."""

    def __init__(
        self,
        one: ProcessInboxMessage,
        inbox: PostgresInboxAdapter,
        functions: PythonEventHandler,
        loop: LoopThread,
        relieve: Callable[[threading.Thread], Any],
        later: Later,
        waiting: Waiting,
    ) -> None:
        self._one = one
        self._inbox = inbox
        self._functions = functions
        self._loop = loop
        self._attended = Attended(loop, relieve)
        self._later = later
        # With a single attempt, a claim ahead could use it up. With order, only the first of a key may run.
        alone = one.ordered or one.max_attempts == 1
        claims = _Claims(inbox, functions, one.max_attempts)
        self.ahead = Ahead(claims, _nothing if alone else waiting, loop.loop)
        self.finished = finished(one, inbox, loop.loop)

    def process(self, message_id: UUID) -> timedelta | None:
        """Process a message as `ProcessInboxMessage.process` does, but never cancel a function that has begun."""
        claim = self.ahead.take(message_id)
        found = self._claim(message_id) if claim is None else (claim, self._functions.transactions.claimed())
        if found is None:
            return None
        claim, taken = found
        try:
            reach("after_message_claim")
            return self._handle(claim, taken)
        finally:
            taken.leave()

    def _claim(self, message_id: UUID) -> tuple[ClaimedMessage, Claimed] | None:
        """Claim one message alone and begin its function's transaction."""
        since = time.monotonic()
        token, command = self._inbox.claim_command(message_id, process.LEASE, self._one.max_attempts)
        found = self._functions.transactions.claim(command, begin=self._functions.writes)
        return None if found is None else (claimed(token, found[0], since), found[1])

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
        if isinstance(disposition, Ack):
            self.finished.add(claim, marked=disposition.settled)
            return None
        return self._conclude(claim, disposition, taken)

    def _call(self, prepared: Prepared, claim: ClaimedMessage, taken: Claimed) -> HandlerResult:
        """Call the function. Raises Overdue when it timed out; the message is then already settled."""
        if not prepared.signature.in_transaction:
            taken.leave()
        lease, seconds = process.LEASE, self._functions.timeout
        attendance = Attendance(
            lease,
            claim.since,
            seconds,
            lambda: self._inbox.renew(claim, lease),
            lambda: self._give_up(claim, seconds),
        )
        return self._attended.call(prepared.member.call, prepared.member.context, taken, attendance)

    async def _give_up(self, claim: ClaimedMessage, seconds: float) -> None:
        """Settle a message whose function takes too long, and enqueue its retry (else the sweep does)."""
        disposition = self._one.decided(timed_out(seconds), claim, seconds)
        delay = await self._one.conclude(claim, disposition)
        if delay is not None:
            await self._later(claim.row.message_id, delay)

    def _conclude(self, claim: ClaimedMessage, disposition: Disposition, taken: Claimed) -> timedelta | None:
        """Record a verdict that is not settled yet, on the event loop."""
        taken.leave()
        return self._loop.run_coroutine(self._one.conclude(claim, disposition))


def _nothing(_limit: int) -> Sequence[UUID]:
    return ()


class _Claims:
    """Claims messages that wait in this process, see `Ahead`."""

    def __init__(self, inbox: PostgresInboxAdapter, functions: PythonEventHandler, max_attempts: int) -> None:
        self._inbox = inbox
        self._run = functions.transactions.run
        self._max_attempts = max_attempts

    def claim(self, id: UUID, others: Sequence[UUID]) -> Mapping[UUID, ClaimedMessage]:
        """Claim a message, and the others that were never tried."""
        since = time.monotonic()
        token, command = self._inbox.claim_ahead_command(id, others, process.LEASE, self._max_attempts)
        claims = [claimed(token, row, since) for row in self._run(command)]
        return {claim.row.message_id: claim for claim in claims}

    def give_back(self, claims: Sequence[ClaimedMessage]) -> None:
        """Undo claims and the attempts that they counted."""
        self._run(("inbox/unclaim", ids_and_tokens(claims)))
