"""One attempt at a task by a plain function, in the thread that took the task.

Claiming begins the function's transaction and settling ends it, each in one round trip. The event loop is asked
only about what does not go well, and about types with limits. A function that outlives its time limit keeps the
thread; the task is tried again all the same, and ``relieve`` puts another thread in its place.
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

from relay.adapters.postgres.handling import Claimed, Settlement
from relay.adapters.postgres.tasks import claim_command
from relay.domain.errors import ClaimLost, DatabaseUnreachable, Outage
from relay.domain.model import HandlerResult
from relay.domain.policies import Ack
from relay.domain.tasks import ClaimedTask, TaskRef
from relay.failpoints import reach
from relay.handling.calls import answer, timed_out
from relay.handling.threads import LoopThread
from relay.handling.watch import Overdue, Watch
from tasks import run
from tasks.registry import Registry, TaskHandler
from tasks.run import Prepared, RunTask, decided

#: Brings a task to a queue after a while.
Later = Callable[[TaskRef, timedelta], Awaitable[None]]


class RunDirectly:
    """Runs the tasks of one context for threads. Safe to run twice at once for the same id."""

    def __init__(
        self,
        one: RunTask,
        registry: Registry,
        loop: LoopThread,
        relieve: Callable[[threading.Thread], Any],
        later: Later,
    ) -> None:
        self._one = one
        self._relieve = relieve
        self._later = later
        self._watch = Watch()
        self._registry = registry
        self._loop = loop

    def run(self, id: UUID, task_type: str) -> timedelta | None:
        """Do as `RunTask.run` does."""
        handler = self._registry.find(task_type)
        if handler is None or handler.limits or handler.function.signature.is_async:
            return self._loop.run_coroutine(self._one.run(id, task_type))
        begin = handler.function.signature.in_transaction
        command = claim_command(id, run.LEASE)
        found = self._one.transactions.claim(command, begin=begin, limit=handler.time_limit)
        if found is None:
            return None
        row, taken = found
        try:
            reach("after_task_claim")
            return self._attempt(ClaimedTask(**row), handler, taken)
        finally:
            taken.leave()

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
        disposition = decided(result, claim, handler)
        if not isinstance(disposition, Ack):
            taken.leave()
            return self._loop.run_coroutine(self._one.conclude(claim, disposition))
        if disposition.settled or self._complete(claim, handler, taken):
            self._one.completed(claim)
        return None

    def _call(self, prepared: Prepared, claim: ClaimedTask, handler: TaskHandler, taken: Claimed) -> HandlerResult:
        """Call the function. Raises Overdue when its time was up, and the case is settled."""

        def call() -> HandlerResult:
            try:
                with prepared.context.use():
                    return prepared.call.run_in_thread(taken)
            except BaseException as error:
                return answer(error)

        thread, begun, seconds = (
            threading.current_thread(),
            time.perf_counter(),
            handler.time_limit.total_seconds(),
        )

        def overdue() -> None:
            self._one.answered(claim, seconds)
            self._relieve(thread)
            asyncio.run_coroutine_threadsafe(self._give_up(claim, handler, seconds), self._loop.loop)

        every = run.LEASE.total_seconds() / 4
        result = self._watch.call(call, seconds, every, lambda: self._renew(claim), overdue)
        self._one.answered(claim, time.perf_counter() - begun)
        return result

    async def _give_up(self, claim: ClaimedTask, handler: TaskHandler, seconds: float) -> None:
        """Settle a task whose function takes too long, and have it tried again; the sweep does if we cannot."""
        with suppress(Outage):
            delay = await self._one.conclude(claim, decided(timed_out(seconds), claim, handler))
            if delay is not None:
                await self._later(TaskRef(claim.id, claim.type, handler.queue, handler.priority), delay)

    def _complete(self, claim: ClaimedTask, handler: TaskHandler, taken: Claimed) -> bool:
        """Record that a task is done of which no transaction says so. False when the claim is lost."""
        taken.leave()
        try:
            self._one.transactions.conclude(Settlement.of_task(claim.id, claim.token, handler.time_limit))
        except ClaimLost:
            return False
        return True

    def _renew(self, claim: ClaimedTask) -> None:
        """Extend the claim. Whether that succeeds is not waited for: the token fences us off when it is lost."""

        async def renew() -> None:
            with suppress(DatabaseUnreachable):
                await self._one.renew(claim)

        asyncio.run_coroutine_threadsafe(renew(), self._loop.loop)
