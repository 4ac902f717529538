"""Handling several messages in one transaction, each with an answer of its own.

When a function fails, only its message is undone. If the whole transaction fails (a claim was lost, the connection
broke, the commit was refused), all its writes are undone. Each message that it would have settled is handled once
more, alone. The claims fence this: a row that was settled is not settled again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from uuid import UUID

from relay.adapters.postgres.shared_transactions import AsyncSharedTransaction, SharedTransaction
from relay.adapters.postgres.transactions import HandlerTransactions
from relay.concurrency import is_ours
from relay.domain.errors import TransactionBroken
from relay.domain.model import HandlerResult
from relay.execution.calls import SETTLED, Calls, PreparedCall, answer, answered, timed_out

#: A transaction takes no further message after this time, in seconds: it holds locks, and a crash undoes it.
MAX_TRANSACTION_S: Final = 0.5
#: How often to check a commit that is under way, in seconds.
_LOOK_INTERVAL_S: Final = 1.0

Answers: TypeAlias = dict[UUID, HandlerResult]


@dataclass(slots=True)
class BatchOutcome:
    """The outcome of the first ``begun`` messages: ``answers``, and the messages to be handled ``alone``."""

    answers: Answers = field(default_factory=dict)
    alone: list[PreparedCall] = field(default_factory=list)
    begun: int = 0


class Batch:
    """One transaction over the first ``members``, as many as fit into it."""

    def __init__(
        self,
        members: Sequence[PreparedCall],
        token: UUID,
        transactions: HandlerTransactions,
        max_seconds: float = MAX_TRANSACTION_S,
    ) -> None:
        self._members = members
        self._max_seconds = max_seconds
        self._token = token
        self._transactions = transactions
        self._outcome = BatchOutcome()
        self._written: list[PreparedCall] = []
        self._begin = self._since = time.monotonic()
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._abandoned = self._committing = False

    # --- in its thread, or on the loop ---

    def run(self) -> BatchOutcome:
        """Call plain functions, one after the other."""
        try:
            with self._transactions.share() as shared:
                self._pid = shared.pid
                for member in self._members:
                    if not self._next():
                        break
                    self._judge(member, _step(shared, member), shared)
                self._close()
                shared.settle([member.id for member in self._written], self._token)
        except BaseException as error:
            return self._lost(error)
        finally:
            with self._lock:
                self._pid = None
        return self._kept()

    async def run_async(self, seconds: float) -> BatchOutcome:
        """Await coroutine functions, one after the other, each for at most ``seconds``."""
        try:
            async with self._transactions.share_async() as shared:
                for member in self._members:
                    if not self._next():
                        break
                    result = await answered(_step_async(shared, member), seconds, member)
                    late = result is not SETTLED and time.monotonic() - self._since >= seconds
                    if late and not result.detail.startswith(timed_out(seconds).detail):
                        result = await member.late(seconds)
                    self._judge(member, result, shared, late=late)
                await shared.settle([member.id for member in self._written], self._token)
        except BaseException as error:
            if is_ours(error):
                raise
            return self._lost(error)
        return self._kept()

    def _next(self) -> bool:
        """Whether the transaction takes a further message."""
        now = time.monotonic()
        with self._lock:
            if self._abandoned:
                raise TransactionBroken("a function has outlived its time-out")
            if self._outcome.begun and now - self._begin > self._max_seconds:
                return False
            self._outcome.begun += 1
            self._since = now
        return True

    def _judge(
        self,
        member: PreparedCall,
        result: HandlerResult,
        shared: SharedTransaction | AsyncSharedTransaction,
        *,
        late: bool = False,
    ) -> None:
        """Note an answer. One that other messages may have caused does not count: its message is handled alone."""
        with self._lock:
            if (shared.broken or shared.conflict) and not late:
                self._outcome.alone.append(member)
            elif result is SETTLED:
                self._written.append(member)
            else:
                self._outcome.answers[member.id] = result
        if shared.broken:
            raise TransactionBroken("the transaction of several messages is gone")
        if shared.conflict:
            # Take no further message: the winner of the deadlock may still wait for locks held here.
            self._begin -= self._max_seconds
            shared.conflict = False

    def _close(self) -> None:
        with self._lock:
            if self._abandoned:
                raise TransactionBroken("a function has outlived its time-out")
            self._committing = True

    def _kept(self) -> BatchOutcome:
        self._outcome.answers |= {member.id: SETTLED for member in self._written}
        return self._outcome

    def _lost(self, error: BaseException) -> BatchOutcome:
        """The outcome if nothing was written. If no message had begun, no transaction was possible: all failed."""
        self._outcome.alone += self._written
        if not self._outcome.begun:
            self._outcome.answers = {member.id: answer(error) for member in self._members}
            self._outcome.begun = len(self._members)
        return self._outcome

    # --- on the loop, while the thread runs ---

    async def watched(self, calls: Calls, seconds: float) -> BatchOutcome:
        """Run in a thread. If a function takes longer than ``seconds``, leave its thread to itself."""
        running = asyncio.ensure_future(calls.in_thread(self.run, self._lost))
        while True:
            left = _LOOK_INTERVAL_S if self._committing else self._since + seconds - time.monotonic()
            await asyncio.wait({running}, timeout=max(0.0, left) + 0.001)
            if running.done():
                return running.result()
            if time.monotonic() >= self._since + seconds and (outcome := self._abandon(seconds)) is not None:
                await asyncio.to_thread(self._end)
                for member in self._members[: outcome.begun]:
                    if outcome.answers.get(member.id) == timed_out(seconds):
                        outcome.answers[member.id] = await member.late(seconds)
                return outcome

    def _abandon(self, seconds: float) -> BatchOutcome | None:
        """Forbid the thread to commit. None if it commits already."""
        with self._lock:
            if self._committing:
                return None
            self._abandoned = True
            begun = self._outcome.begun or len(self._members)
            rated = {member.id for member in (*self._written, *self._outcome.alone)} | {*self._outcome.answers}
            without = {member.id: timed_out(seconds) for member in self._members[:begun] if member.id not in rated}
            alone = [*self._outcome.alone, *self._written]
            return BatchOutcome(self._outcome.answers | without, alone, begun)

    def _end(self) -> None:
        """End the transaction that was left behind: the messages that are handled alone need its locks."""
        with self._lock:
            if self._pid is not None:
                self._transactions.end_session(self._pid)


@dataclass(frozen=True, slots=True)
class BatchCalls:
    """Runs the calls of a chunk in as few transactions as they fit into.

    ``seconds`` bounds each call. A transaction takes no further call after ``max_transaction`` seconds.
    """

    transactions: HandlerTransactions
    calls: Calls
    seconds: float
    max_transaction: float = MAX_TRANSACTION_S

    async def run(self, members: Sequence[PreparedCall], token: UUID) -> tuple[Answers, list[UUID]]:
        """Run calls, all coroutine functions or all plain ones. Returns answers, and the ids without an answer."""
        answers: Answers = {}
        alone: list[UUID] = []
        while members:
            outcome = await self._run(Batch(members, token, self.transactions, self.max_transaction), members[0])
            answers |= outcome.answers
            alone += [member.id for member in outcome.alone]
            members = members[outcome.begun :]
        return answers, alone

    async def _run(self, batch: Batch, first: PreparedCall) -> BatchOutcome:
        if not first.function.signature.is_async:
            return await batch.watched(self.calls, self.seconds)
        async with self.calls.slots:
            return await batch.run_async(self.seconds)


def _step(shared: SharedTransaction, member: PreparedCall) -> HandlerResult:
    try:
        with member.context.use(), shared.step() as transaction:
            member.write(transaction)
    except BaseException as error:
        return member.failed(error)
    return SETTLED


async def _step_async(shared: AsyncSharedTransaction, member: PreparedCall) -> HandlerResult:
    with member.context.use():
        async with shared.step() as transaction:
            await member.write_async(transaction)
    return SETTLED
