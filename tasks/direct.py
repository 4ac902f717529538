"""One attempt at a task by a plain function, in the thread that took the task.

A task is claimed together with others of its queue that wait in this process. If none waits, it is claimed alone.
Then the claim also begins the function's transaction, and the settlement ends it, each in one round trip. The
thread reports finished tasks to the event loop, many at a time. The loop completes those that no function's
transaction has completed. Otherwise the thread uses the loop only for failures and for types with limits. A
function that runs past its time limit keeps the thread. The task is tried again all the same, and ``relieve``
starts another thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from relay.adapters.postgres.handling import Claimed, HandlerTransactions
from relay.adapters.postgres.tasks import PostgresTasks, claim_ahead_command, claim_command, give_back_command
from relay.domain.model import HandlerResult
from relay.domain.policies import Ack
from relay.domain.tasks import ClaimedTask, TaskRef
from relay.failpoints import reach
from relay.handling.ahead import Ahead
from relay.handling.attended import Attendance, Attended
from relay.handling.calls import timed_out
from relay.handling.finished import Finished
from relay.handling.watch import Overdue
from relay.threads import LoopThread
from tasks import run
from tasks.registry import Registry, TaskHandler
from tasks.run import Prepared, RunTask

#: Enqueues a task after a delay.
Later = Callable[[TaskRef, timedelta], Awaitable[None]]
#: Returns up to so many tasks of a queue that wait in this process, the next one first, if their type is accepted.
Waiting = Callable[[str, Callable[[str], bool], int], Sequence[UUID]]


class RunDirectly:
    """Runs the tasks of one context in worker threads. Two runs at once for the same id are safe."""

    def __init__(
        self,
        one: RunTask,
        tasks: PostgresTasks,
        registry: Registry,
        loop: LoopThread,
        relieve: Callable[[threading.Thread], Any],
        later: Later,
        waiting: Waiting,
    ) -> None:
        self._one = one
        self._registry = registry
        self._loop = loop
        self._attended = Attended(loop, relieve)
        self._later = later
        self._waiting = waiting
        self._ahead: dict[str, Ahead[UUID, ClaimedTask]] = {}
        registry.watch(self._serve)
        self.finished = Finished(tasks.complete_all, self._tell, loop.loop, pause=True)

    def _serve(self, queue: str) -> None:
        """Begin to claim tasks of a queue ahead; each queue has its own pace."""

        def waiting(limit: int) -> Sequence[UUID]:
            return self._waiting(queue, lambda task_type: _taken_ahead(self._registry.find(task_type)), limit)

        if queue not in self._ahead:
            self._ahead[queue] = Ahead(_Claims(self._one.transactions), waiting, self._loop.loop)

    def give_back(self) -> None:
        """Stop claims ahead, and give back those that are left."""
        for ahead in list(self._ahead.values()):
            ahead.close()

    def run(self, id: UUID, task_type: str) -> timedelta | None:
        """Make one attempt, as `RunTask.run` does."""
        handler = self._registry.find(task_type)
        if handler is None or not in_thread(handler):
            return self._loop.run_coroutine(self._one.run(id, task_type))
        found = self._claim(id, handler)
        if found is None:
            return None
        claim, taken = found
        try:
            reach("after_task_claim")
            return self._attempt(claim, handler, taken)
        finally:
            taken.leave()

    def _claim(self, id: UUID, handler: TaskHandler) -> tuple[ClaimedTask, Claimed] | None:
        """Take a task's claim if it was made ahead; else claim it alone and begin its function's transaction."""
        transactions, limit = self._one.transactions, handler.time_limit
        if _taken_ahead(handler) and (claim := self._ahead[handler.queue].take(id)) is not None:
            return claim, transactions.claimed(limit)
        begin, since = handler.function.signature.in_transaction, time.monotonic()
        found = transactions.claim(claim_command(id, run.LEASE), begin=begin, limit=limit)
        return None if found is None else (ClaimedTask(**found[0], since=since), found[1])

    def _attempt(self, claim: ClaimedTask, handler: TaskHandler, taken: Claimed) -> timedelta | None:
        spent = claim.attempts > handler.policy.max_attempts
        if spent or claim.processed or claim.concurrency_key is not None:
            taken.leave()
            return self._loop.run_coroutine(self._one.attempt(claim, handler))
        prepared = self._one.prepared(claim, handler)
        try:
            result = (
                prepared if isinstance(prepared, HandlerResult) else self._call(prepared, claim, handler, taken)
            )
        except Overdue:
            return None
        reach("after_task_answer")
        disposition = self._one.decided(result, claim, handler)
        if not isinstance(disposition, Ack):
            taken.leave()
            return self._loop.run_coroutine(self._one.conclude(claim, disposition))
        self.finished.add(claim, marked=disposition.settled)
        return None

    async def _tell(self, claims: Sequence[ClaimedTask]) -> None:
        for claim in claims:
            self._one.completed(claim)

    def _call(self, prepared: Prepared, claim: ClaimedTask, handler: TaskHandler, taken: Claimed) -> HandlerResult:
        """Call the function. Raises Overdue when it timed out; the task is then already settled."""
        seconds = handler.time_limit.total_seconds()
        attendance = Attendance(
            run.LEASE,
            claim.since,
            seconds,
            lambda: self._one.renew(claim),
            lambda: self._give_up(claim, handler, seconds),
        )
        begun = time.perf_counter()
        result = self._attended.call(prepared.call, prepared.context, taken, attendance)
        self._one.answered(claim, time.perf_counter() - begun)
        return result

    async def _give_up(self, claim: ClaimedTask, handler: TaskHandler, seconds: float) -> None:
        """Settle a task whose function takes too long, and enqueue its retry (else the sweep does)."""
        self._one.answered(claim, seconds)
        delay = await self._one.conclude(claim, self._one.decided(timed_out(seconds), claim, handler))
        if delay is not None:
            await self._later(TaskRef(claim.id, claim.type, handler.queue, handler.priority), delay)


def in_thread(handler: TaskHandler | None) -> bool:
    """Tell whether tasks of a type run in the thread that took them."""
    return handler is not None and not handler.limits and not handler.function.signature.is_async


def _taken_ahead(handler: TaskHandler | None) -> bool:
    """Tell whether a type's tasks may be claimed ahead. With a single attempt, a claim ahead could use it up."""
    return handler is not None and in_thread(handler) and handler.policy.max_attempts > 1


class _Claims:
    """Claims tasks that wait in this process, see `Ahead`."""

    def __init__(self, transactions: HandlerTransactions) -> None:
        self._run = transactions.run

    def claim(self, id: UUID, others: Sequence[UUID]) -> Mapping[UUID, ClaimedTask]:
        """Claim a task, and the others that never began."""
        since = time.monotonic()
        found = self._run(claim_ahead_command(id, others, run.LEASE))
        claims = [ClaimedTask(**row, since=since) for row in found]
        return {claim.id: claim for claim in claims}

    def give_back(self, claims: Sequence[ClaimedTask]) -> None:
        """Undo claims and the attempts that they counted."""
        self._run(give_back_command(claims))
