"""Tasks as the runners of `relay.execution` see them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from pydantic import ValidationError

from relay.adapters.postgres.controls import KnownControls
from relay.adapters.postgres.pipeline import Command
from relay.adapters.postgres.tasks import (
    PostgresTasks,
    claim_command,
    fail_command,
    give_back_command,
    prefetch_command,
)
from relay.adapters.postgres.transactions import HandlerTransactions, Settlement
from relay.bus import RequestContext
from relay.commands.open_personal import OpenPersonal
from relay.domain.controls import UNCONTROLLED, Limit, What, put_off
from relay.domain.disclosure import validation
from relay.domain.errors import MasterKeyMissing, Outage, PersonalDamaged, SubjectForgotten, UnknownKey
from relay.domain.facts import (
    FactSink,
    TaskAnswered,
    TaskCompleted,
    TaskExpired,
    TaskFailed,
    TaskPutOff,
    TaskRetried,
    TaskUnhandled,
    Traced,
)
from relay.domain.identity import CAUSATION_ID, CORRELATION_ID, NO_ORIGINALS, shown
from relay.domain.model import HandlerResult, Verdict
from relay.domain.personal import MARK
from relay.domain.policies import (
    EXPIRED,
    Ack,
    DeadLetter,
    DeadLetterClass,
    Disposition,
    Retry,
    TooLate,
    decide,
    unanswered,
)
from relay.domain.reasons import in_short
from relay.domain.retry import Later
from relay.domain.tasks import DEFAULT_QUEUE, BackgroundTask, ClaimedTask, PutOff, TaskRef
from relay.domain.traceparent import TRACEPARENT, call_span, next_hop, trace_id
from relay.execution.calls import Calls, Function, PreparedCall, answered
from relay.execution.rows import Decided, Terms, Unclaimed
from relay.execution.signatures import Inject
from relay.execution.tallies import ByName
from relay.failpoints import reach
from tasks.corrections import TIME_LIMIT, FailedTask
from tasks.registry import TaskContext, TaskHandler, TaskRegistry

#: If a slot of the rate limit is free within this time, the task waits here: delays of a queue are too coarse.
_SOON: Final = timedelta(milliseconds=500)
#: How long a task waits when no loaded module registers its type, usually for a deployment.
_UNHANDLED: Final = PutOff(timedelta(seconds=10), "handler")

#: How many corrections of a context run at once in a process. Those past their time limit count too.
_MAX_CORRECTIONS: Final = 8

#: How long a claim of a task holds if nobody renews it.
LEASE: Final = timedelta(seconds=8)

#: Delivers tasks that are due now.
Wake = Callable[[Sequence[TaskRef]], Awaitable[None]]


class _Sealed(NamedTuple):
    """A payload with encrypted values, in the place of a function's argument."""

    payload: str


#: What a task comes to whose person was forgotten, if its function is not called.
_FORGOTTEN: Final = {"skip": Verdict.PROCESSED, "dead": Verdict.REFUSED}


class TaskKey(NamedTuple):
    """What a job says about its task."""

    id: UUID
    type: str


@dataclass(slots=True, kw_only=True)
class TaskRows:
    """The tasks of one context: how they are claimed and called, and what follows from an answer.

    ``size``: how many of a queue run at once on the event loop. ``error_text``: whether to keep the full text of
    exceptions, which may show payload. ``lease``: a claim outlives a dead worker by at most this time; a live
    worker renews it during a call. ``correction_limit``: how long a correction may take. ``controls``: what
    operators have paused and limited. ``tallies``: count for the history. ``opens``: what reads personal values.
    """

    context: str
    tasks: PostgresTasks
    registry: TaskRegistry
    transactions: HandlerTransactions
    wake: Wake
    facts: FactSink
    size: int
    error_text: bool = False
    lease: timedelta = LEASE
    correction_limit: timedelta = TIME_LIMIT
    controls: KnownControls | None = None
    tallies: ByName = field(default_factory=ByName)
    opens: OpenPersonal | None = None
    _calls: dict[str, Calls] = field(init=False, default_factory=dict)
    _corrections: Calls = field(init=False, default_factory=lambda: Calls(_MAX_CORRECTIONS))

    after_claim = "after_task_claim"

    # --- on the event loop ---

    async def claim(self, key: TaskKey) -> ClaimedTask | Unclaimed[timedelta] | None:
        """Claim a task, unless its type is unknown or paused, or a limit does not let it start."""
        handler = self.registry.find(key.type)
        controls = UNCONTROLLED if self.controls is None else self.controls.look() or await self.controls.now()
        queue = DEFAULT_QUEUE if handler is None else handler.queue
        if (pause := controls.task(key.type, queue)) is not None:
            # No job is left behind: whoever resumes it, or the sweep after the end, brings it back.
            await self.tasks.put_off(key.id, PutOff(put_off(pause), "resume"))
            return None
        if handler is None:
            await self.tasks.put_off(key.id, _UNHANDLED)
            self.facts(TaskUnhandled(context=self.context, task_id=key.id, task_type=key.type))
            return Unclaimed(Later.of(_UNHANDLED.delay, f"waits for {_UNHANDLED.waits_for}"))
        started = await self._start(key.id, handler, controls.limit(What.TASK_TYPE, key.type))
        if not isinstance(started, PutOff):
            return started
        about: dict[str, Any] = {"context": self.context, "task_id": key.id, "task_type": key.type}
        self.facts(TaskPutOff(**about, waits_for=started.waits_for, delay_seconds=started.delay.total_seconds()))
        return Unclaimed(Later.of(started.delay, f"waits for {started.waits_for}"))

    async def _start(self, id: UUID, handler: TaskHandler, limit: Limit) -> ClaimedTask | PutOff | None:
        """Claim the task; wait here if its slot of the rate limit is near. ``limit``: of an operator."""
        limits = limit.over(handler.limits)
        while True:
            started = await self.tasks.claim(id, handler.type, self.lease, limits)
            if not isinstance(started, PutOff) or started.waits_for != "turn" or started.delay > _SOON:
                return started
            await asyncio.sleep(started.delay.total_seconds())

    async def renew(self, claim: ClaimedTask) -> bool:
        """See `SingleRows`."""
        return await self.tasks.renew(claim, self.lease)

    def request(self, claim: ClaimedTask) -> PreparedCall | Decided[Disposition]:
        """Return the call for a task, or a verdict: done before, no attempt left, or its payload does not fit."""
        handler = self._handler(claim)
        if claim.processed:
            return Decided(Ack())
        if claim.stale:
            return Decided(TooLate(EXPIRED, DeadLetterClass.DETERMINISTIC))
        if claim.attempts > handler.policy.max_attempts:
            return Decided(unanswered(claim.attempts - 1))
        sealed = handler.personal is not None and MARK.decode() in claim.payload
        try:
            argument = _Sealed(claim.payload) if sealed else handler.adapter.validate_json(claim.payload)
        except ValidationError as error:
            return Decided(DeadLetter(_misfit(error), DeadLetterClass.DETERMINISTIC))
        token, attempt, span = claim.token, claim.attempts, _span(claim)
        return prepared(
            claim, handler, argument, self.transactions, token=token, attempt=attempt, traceparent=span
        )

    async def ask(self, call: PreparedCall) -> HandlerResult:
        """Call the function, within its time limit."""
        handler = self.registry.find(call.injected[Inject.CONTEXT].task_type)
        assert handler is not None
        if isinstance(call.argument, _Sealed):
            opened = await self._opened(call, call.argument.payload, handler)
            if isinstance(opened, HandlerResult):
                return opened
            call = opened
        calls = self._calls.setdefault(handler.queue, Calls(self.size))
        return await answered(calls.run(call), handler.time_limit.total_seconds(), call)

    async def _opened(
        self, call: PreparedCall, payload: str, handler: TaskHandler
    ) -> PreparedCall | HandlerResult:
        """The call with plain values, or the answer if the function is not called.

        Keys that cannot be had now are an outage: the task waits, and spends no attempt.
        """
        try:
            if self.opens is None:
                raise MasterKeyMissing("this process has no master keys, and the task has personal values")
            content, forgotten = await self.opens.open(json.loads(payload), self.context)
            if forgotten and handler.forgotten != "call":
                reason = f"{SubjectForgotten.code}: it is about a person who was forgotten"
                return HandlerResult(_FORGOTTEN[handler.forgotten], reason)
            return replace(call, argument=handler.adapter.validate_json(json.dumps(content)))
        except Outage as error:
            return HandlerResult(Verdict.TRANSIENT, str(error), counts=False)
        except (UnknownKey, PersonalDamaged) as error:
            return HandlerResult(Verdict.POISON, str(error))
        except ValidationError as error:
            return HandlerResult(Verdict.POISON, _misfit(error))

    def decide(self, result: HandlerResult, claim: ClaimedTask, seconds: float) -> Disposition:
        """Report the answer, and apply the type's policy to it."""
        self.tallies[claim.type].took(seconds)
        traced = _traced(claim, self._handler(claim), result)
        self.facts(TaskAnswered(context=self.context, task_type=claim.type, seconds=seconds, traced=traced))
        reach("after_task_answer")
        shown = result.in_full() if self.error_text else result
        age = datetime.now(UTC) - claim.due_at
        verdict = decide(shown, claim.attempts, self._handler(claim).policy, random.random(), age)  # noqa: S311
        return verdict if isinstance(verdict, Ack) else replace(verdict, seconds=seconds)

    async def mark(self, claims: Sequence[ClaimedTask]) -> Sequence[ClaimedTask]:
        """Mark tasks as completed."""
        return await self.tasks.complete_all(claims)

    async def finish(self, claims: Sequence[ClaimedTask]) -> None:
        """Report completed tasks, and wake the next of their keys."""
        for claim in claims:
            self.facts(TaskCompleted(**self._about(claim)))
        for claim in claims:
            await self._next(claim)

    async def conclude(self, claim: ClaimedTask, verdict: Retry | DeadLetter) -> timedelta | None:
        """Record a failure."""
        try:
            if isinstance(verdict, TooLate):
                if await self.tasks.expire(claim):
                    self.facts(TaskExpired(**self._about(claim)))
                return None
            self.tallies[claim.type].failed += 1
            if isinstance(verdict, DeadLetter):
                if await self._fail(claim, verdict):
                    self.facts(TaskFailed(**self._about(claim), error=verdict.reason))
                return None
            if not await self.tasks.record_error(claim, verdict):
                return None
            seconds = verdict.delay.total_seconds()
            self.facts(TaskRetried(**self._about(claim), delay_seconds=seconds, error=verdict.error))
            return Later.of(verdict.delay, in_short(verdict.error))
        finally:
            await self._next(claim)

    async def _fail(self, claim: ClaimedTask, verdict: DeadLetter) -> bool:
        """End a task as failed, in the transaction of its correction if it has one. False: the claim was lost."""
        correction = self.registry.corrections.get(claim.type)
        if correction is None:
            return await self.tasks.fail(claim, verdict)
        limit = self.correction_limit
        if not await self.tasks.renew(claim, limit + self.lease):
            return False
        name, parameters = fail_command(claim, verdict)
        settlement = Settlement(name, dict(parameters), limit)
        call = correcting(claim, correction, verdict.reason, settlement, self.transactions)
        result = await answered(self._corrections.run(call), limit.total_seconds())
        if result.settled:
            return True
        failed = result.verdict not in (Verdict.PROCESSED, Verdict.ALREADY_PROCESSED)
        return await self.tasks.fail(claim, verdict, (result.detail or "it failed") if failed else None)

    async def _next(self, claim: ClaimedTask) -> None:
        """Deliver the next task of the key. If this fails, that task tries again by itself."""
        if claim.concurrency_key is not None:
            with contextlib.suppress(Outage):
                await self.wake(await self.tasks.next_of_key(claim.concurrency_key))

    # --- in a worker thread ---

    def terms(self, key: TaskKey) -> Terms | None:
        """Plain functions without limits run in threads. See `ThreadRows` for this and what follows."""
        handler = self.registry.find(key.type)
        if handler is None or not in_thread(handler):
            return None
        if self.controls is not None:
            # The loop claims what is paused or limited at run time, and whatever comes while that is not known.
            known = self.controls.look()
            if known is None or known.task(key.type, handler.queue) or known.limit(What.TASK_TYPE, key.type):
                return None
        return Terms(
            handler.time_limit.total_seconds(),
            writes=handler.function.signature.in_transaction,
            # With a single attempt, a prefetched claim could use it up.
            prefetch=handler.policy.max_attempts > 1,
            limit=handler.time_limit,
        )

    def call(self, call: PreparedCall) -> PreparedCall:
        return call

    def claim_command(self, key: TaskKey) -> Command:
        return claim_command(key.id, self.lease)

    def prefetch_command(self, key: TaskKey, others: Sequence[TaskKey]) -> Command:
        return prefetch_command(key.id, [other.id for other in others], self.lease)

    def unclaim_command(self, claims: Sequence[ClaimedTask]) -> Command:
        return give_back_command(claims)

    def read_claim(self, _command: Command, row: dict[str, Any], since: float) -> ClaimedTask:
        return ClaimedTask(**row, since=since)

    def key(self, claim: ClaimedTask) -> TaskKey:
        return TaskKey(claim.id, claim.type)

    # --- both ---

    def _handler(self, claim: ClaimedTask) -> TaskHandler:
        handler = self.registry.find(claim.type)
        assert handler is not None  # looked up before the claim
        return handler

    def _about(self, claim: ClaimedTask) -> dict[str, Any]:
        return {
            "context": self.context,
            "task_id": claim.id,
            "task_type": claim.type,
            "correlation_id": claim.correlation_id,
            "causation_id": claim.causation_id,
            "attempts": claim.attempts,
            "trace_id": trace_id(claim.metadata.get(TRACEPARENT)),
        }


def prepared(
    task: ClaimedTask | BackgroundTask,
    handler: TaskHandler,
    argument: Any,
    transactions: HandlerTransactions,
    *,
    token: UUID,
    attempt: int,
    traceparent: str | None,
) -> PreparedCall:
    """The call of a task's function. ``token``: of the claim that it settles."""
    originals = task.originals or NO_ORIGINALS
    context = TaskContext(
        task_id=task.id,
        task_type=task.type,
        correlation_id=shown(task.correlation_id or task.id, originals, CORRELATION_ID),
        causation_id=shown(task.causation_id, originals, CAUSATION_ID),
        attempt=attempt,
        metadata=task.metadata,
    )
    return PreparedCall(
        task.id,
        handler.function,
        argument,
        {Inject.CONTEXT: context},
        RequestContext(correlation_id=context.correlation_id, causation_id=task.id, traceparent=traceparent),
        Settlement("tasks/settle", {"id": task.id, "token": token}, handler.time_limit),
        transactions,
    )


def correcting(
    claim: ClaimedTask,
    correction: Function,
    reason: str,
    settlement: Settlement,
    transactions: HandlerTransactions,
) -> PreparedCall:
    """The call of a function for a task that has failed for good."""
    originals = claim.originals or NO_ORIGINALS
    correlation_id = shown(claim.correlation_id or claim.id, originals, CORRELATION_ID)
    failed = FailedTask.read(
        claim.payload,
        task_id=claim.id,
        task_type=claim.type,
        reason=reason,
        attempts=claim.attempts,
        correlation_id=correlation_id,
        causation_id=shown(claim.causation_id, originals, CAUSATION_ID),
        metadata=claim.metadata,
    )
    context = RequestContext(correlation_id=correlation_id, causation_id=claim.id, traceparent=_span(claim))
    return PreparedCall(claim.id, correction, failed, {}, context, settlement, transactions)


def _span(claim: ClaimedTask) -> str | None:
    """The ``traceparent`` of a call: the trace of whoever scheduled the task, and a span of its own."""
    received = claim.metadata.get(TRACEPARENT)
    return None if received is None else next_hop(received, call_span(claim.token, claim.id))


def _traced(claim: ClaimedTask, handler: TaskHandler, result: HandlerResult) -> Traced | None:
    """What a tracer must know of a call; None if its task belongs to no trace."""
    if (span := _span(claim)) is None:
        return None
    received, verdict = claim.metadata[TRACEPARENT], result.verdict.value
    return Traced(received, span, claim.id, claim.correlation_id, handler.queue, claim.attempts, verdict)


def _misfit(error: ValidationError) -> str:
    return f"does not fit its handler: {validation(error, 'payload')}"


def in_thread(handler: TaskHandler | None) -> bool:
    """Return whether tasks of a type run in the thread that took them."""
    if handler is None or handler.limits or handler.personal is not None:
        return False
    return not handler.function.signature.is_async
