"""One attempt at one task: claim → handler → policy → settle. Two runs at once for the same id are safe."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from pydantic import ValidationError

from relay.adapters.postgres.handling import HandlerTransactions, Settlement
from relay.adapters.postgres.tasks import PostgresTasks
from relay.bus import RequestContext
from relay.domain.disclosure import validation
from relay.domain.errors import Outage
from relay.domain.facts import (
    FactSink,
    TaskAnswered,
    TaskCompleted,
    TaskFailed,
    TaskPutOff,
    TaskRetried,
    TaskUnhandled,
)
from relay.domain.model import HandlerResult, Verdict
from relay.domain.policies import Ack, DeadLetter, Disposition, Retry, decide
from relay.domain.tasks import ClaimedTask, PutOff, TaskRef
from relay.failpoints import reach
from relay.handling.calls import Call, Calls, answered
from relay.handling.signatures import Inject
from relay.leases import kept
from tasks.registry import Registry, TaskContext, TaskHandler

#: A claim outlives a dead worker by at most this time; a live worker renews it during a call.
LEASE: Final = timedelta(seconds=8)
#: A turn of the rate limit within this time is waited for here: a queue's delays are too coarse for fast rates.
_SOON: Final = timedelta(milliseconds=500)
#: How long a task waits when no loaded module registers its type, usually for a deployment.
_UNHANDLED: Final = PutOff(timedelta(seconds=10), "handler")

#: Delivers tasks that are due now.
Wake = Callable[[Sequence[TaskRef]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call and the context it runs in."""

    call: Call
    context: RequestContext


class RunTask:
    """Runs the tasks of one context, ``size`` of each queue at once.

    ``error_text``: whether to keep the full text of exceptions, which may show payload.
    """

    def __init__(
        self,
        context: str,
        tasks: PostgresTasks,
        registry: Registry,
        transactions: HandlerTransactions,
        wake: Wake,
        facts: FactSink,
        *,
        size: int,
        error_text: bool = False,
    ) -> None:
        self._context = context
        self._tasks = tasks
        self._registry = registry
        self.transactions = transactions
        self._wake = wake
        self._facts = facts
        self._size = size
        self._calls: dict[str, Calls] = {}
        self._error_text = error_text

    async def run(self, id: UUID, task_type: str) -> timedelta | None:
        """Make one attempt; returns after how long to try again, or None when nothing is left to do.

        Raises DatabaseUnreachable; as LeaseOver, when the call was cancelled because its claim could not be
        renewed. The row then keeps its claim until the lease is over.
        """
        handler = self._registry.find(task_type)
        if handler is None:
            await self._tasks.put_off(id, _UNHANDLED)
            self._facts(TaskUnhandled(context=self._context, task_id=id, task_type=task_type))
            return _UNHANDLED.delay
        match await self._start(id, handler):
            case ClaimedTask() as claim:
                reach("after_task_claim")
                return await self.attempt(claim, handler)
            case PutOff(delay, waits_for):
                seconds = delay.total_seconds()
                self._facts(
                    TaskPutOff(
                        context=self._context,
                        task_id=id,
                        task_type=task_type,
                        waits_for=waits_for,
                        delay_seconds=seconds,
                    )
                )
                return delay
        return None

    async def _start(self, id: UUID, handler: TaskHandler) -> ClaimedTask | PutOff | None:
        """Claim the task; wait here if its turn of the rate limit is near."""
        while True:
            found = await self._tasks.claim(id, handler.type, LEASE, handler.limits)
            if not isinstance(found, PutOff) or found.waits_for != "turn" or found.delay > _SOON:
                return found
            await asyncio.sleep(found.delay.total_seconds())

    async def attempt(self, claim: ClaimedTask, handler: TaskHandler) -> timedelta | None:
        """Do the rest of `run` for a claimed task."""
        try:
            result = await self._ask(claim, handler)
            if result.verdict is Verdict.TRANSIENT and claim.attempts > handler.policy.max_attempts:
                await self._fail(claim, result.detail)
                return None
            reach("after_task_answer")
            disposition = self.decided(result, claim, handler)
            if isinstance(disposition, Ack) and (disposition.settled or await self._tasks.complete(claim)):
                self.completed(claim)
            return await self.conclude(claim, disposition)
        finally:
            await self._next(claim)

    def decided(self, result: HandlerResult, claim: ClaimedTask, handler: TaskHandler) -> Disposition:
        """Decide what follows from an answer."""
        shown = result.in_full() if self._error_text else result
        return decide(shown, claim.attempts, handler.policy, random.random())  # noqa: S311

    async def conclude(self, claim: ClaimedTask, disposition: Disposition) -> timedelta | None:
        """Record a verdict that is not a success."""
        match disposition:
            case DeadLetter(reason):
                await self._fail(claim, reason)
            case Retry(delay, error):
                return await self._put_off(claim, delay, error)
        return None

    async def _ask(self, claim: ClaimedTask, handler: TaskHandler) -> HandlerResult:
        if claim.processed:
            return HandlerResult(Verdict.ALREADY_PROCESSED)
        if claim.attempts > handler.policy.max_attempts:
            # All attempts are used, and the last one gave no answer: its worker died.
            return HandlerResult.failed(f"exhausted: {claim.attempts - 1} attempts, the last one was cut short")
        prepared = self.prepared(claim, handler)
        if isinstance(prepared, HandlerResult):
            return prepared
        begun, seconds = time.perf_counter(), handler.time_limit.total_seconds()
        try:
            async with kept(LEASE, claim.since, lambda: self.renew(claim)):
                with prepared.context.use():
                    return await answered(self._calls_of(handler.queue).run(prepared.call), seconds)
        finally:
            self.answered(claim, time.perf_counter() - begun)

    def _calls_of(self, queue: str) -> Calls:
        if queue not in self._calls:
            self._calls[queue] = Calls(self._size)
        return self._calls[queue]

    def prepared(self, claim: ClaimedTask, handler: TaskHandler) -> Prepared | HandlerResult:
        """Return the call for a task, or an answer when its payload does not fit."""
        try:
            argument = handler.adapter.validate_json(claim.payload)
        except ValidationError as error:
            return HandlerResult(Verdict.POISON, f"does not fit its handler: {validation(error, 'payload')}")
        context = TaskContext(
            task_id=claim.id,
            task_type=claim.type,
            correlation_id=claim.correlation_id or claim.id,
            causation_id=claim.causation_id,
            attempt=claim.attempts,
            metadata=claim.metadata,
        )
        call = Call(
            handler.function,
            argument,
            {Inject.CONTEXT: context},
            Settlement.of_task(claim.id, claim.token, handler.time_limit),
            self.transactions,
        )
        return Prepared(call, RequestContext(correlation_id=context.correlation_id, causation_id=claim.id))

    def answered(self, claim: ClaimedTask, seconds: float) -> None:
        """Report how long the function has taken."""
        self._facts(TaskAnswered(context=self._context, task_type=claim.type, seconds=seconds))

    def completed(self, claim: ClaimedTask) -> None:
        """Report that a task is completed."""
        self._facts(TaskCompleted(**self._about(claim)))

    async def renew(self, claim: ClaimedTask) -> bool:
        """Extend a claim. Returns False when it was lost."""
        return await self._tasks.renew(claim, LEASE)

    async def _put_off(self, claim: ClaimedTask, delay: timedelta, error: str) -> timedelta | None:
        if not await self._tasks.record_error(claim, error, delay):
            return None
        self._facts(TaskRetried(**self._about(claim), delay_seconds=delay.total_seconds(), error=error))
        return delay

    async def _fail(self, claim: ClaimedTask, error: str) -> None:
        if await self._tasks.fail(claim, error):
            self._facts(TaskFailed(**self._about(claim), error=error))

    async def _next(self, claim: ClaimedTask) -> None:
        """Deliver the next task of the key. If this fails, that task tries again by itself."""
        if claim.concurrency_key is not None:
            with contextlib.suppress(Outage):
                await self._wake(await self._tasks.next_of_key(claim.concurrency_key))

    def _about(self, claim: ClaimedTask) -> dict[str, Any]:
        return {
            "context": self._context,
            "task_id": claim.id,
            "task_type": claim.type,
            "correlation_id": claim.correlation_id,
            "causation_id": claim.causation_id,
            "attempts": claim.attempts,
        }
