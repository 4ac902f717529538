"""PythonEventHandler: PORT-047-005 in this process, for ``handler = "python:myapp.handlers"`` (DESIGN §6).

What a handler writes in the inbox transaction commits together with ``processed_at``. The claim's token
fences the commit, so the effect happens exactly once. A handler that takes neither session nor connection
has no such transaction. Like a service, it is called at least once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, TypeAlias

from consumer.chunk import Heard, side_by_side
from consumer.handlers import Registry
from consumer.signatures import IncomingEvent, Inject, MessageContext, Signature
from relay.adapters.postgres.handling import HandlerTransactions, Settlement
from relay.bus import RequestContext
from relay.domain.envelopes import MSG_ID, read_request
from relay.domain.model import HandlerResult, Verdict
from relay.handling.calls import DETAIL, Call, Calls, answer, answered
from relay.handling.together import Answers, Member, Together
from relay.ports import HandlerRequest

#: How many calls of one subscription may run at once in a process. Calls past their timeout count too.
CALLS: Final = 16

Unknown: TypeAlias = Literal["dead-letter", "skip", "retry"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request, its event's key and the call to make."""

    request: HandlerRequest
    key: str
    member: Member

    @property
    def signature(self) -> Signature:
        """The signature of the function to call."""
        return self.member.call.function.signature


class PythonEventHandler:
    """Calls the functions of a registry: coroutines on the event loop, each plain function in a thread.

    ``plain`` tells whether any function is plain; ``writes``, whether a plain one writes in its transaction.
    ``unknown`` says what happens to an event without a function. ``timeout`` (seconds) bounds a whole call.
    A plain function cannot be stopped. But the retry takes its claim away, so it can no longer commit.
    """

    def __init__(
        self,
        registry: Registry,
        transactions: HandlerTransactions,
        *,
        timeout: timedelta,
        unknown: Unknown = "dead-letter",
    ) -> None:
        self._registry = registry
        self.transactions = transactions
        self.timeout = timeout.total_seconds()
        plain = [it.signature for it in registry.handlers.values() if not it.signature.is_async]
        self.plain = has_plain(registry)
        self.writes = any(signature.in_transaction for signature in plain)
        self._unknown = unknown
        self._calls = Calls(CALLS)
        self._together = Together(transactions, self._calls, self.timeout)
        # Chunks may use half of the calls, so that the other half never waits for a chunk.
        self._side_by_side = side_by_side(self, asyncio.Semaphore(max(1, CALLS // 2)))

    async def handle(self, request: HandlerRequest) -> HandlerResult:
        """Handle one request, see the port. Every exception of the function becomes an answer."""
        return await answered(self._handle(request), self.timeout)

    async def handle_all(self, requests: Sequence[HandlerRequest], heard: Heard) -> Answers:
        """Handle many requests, see `consumer.chunk.AskAll`.

        Functions that write in the inbox transaction share one transaction and its time.
        """
        answers: Answers = {}
        sharing: dict[bool, list[Prepared]] = {False: [], True: []}
        others: list[HandlerRequest] = []
        for request in requests:
            prepared = self.prepared(request)
            if isinstance(prepared, HandlerResult):
                answers[request.message_id] = prepared
                heard(0.0)
            elif prepared.signature.in_transaction:
                sharing[prepared.signature.is_async].append(prepared)
            else:
                others.append(request)
        for members in sharing.values():
            answers |= await self._share(members, heard)
        answers |= await self._side_by_side(others, heard)
        return answers

    def prepared(self, request: HandlerRequest) -> Prepared | HandlerResult:
        """Return the call for a request, or an answer when no call is needed."""
        try:
            return self._prepare(request)
        except Exception as error:
            return answer(error)

    async def _share(self, members: list[Prepared], heard: Heard) -> Answers:
        if not members:
            return {}
        begun = time.perf_counter()
        # Sorted by key, so that two transactions take their row locks in the same order.
        members.sort(key=lambda it: it.key)
        answers, rest = await self._together.run([it.member for it in members], members[0].request.token)
        left = set(rest)
        for it in members:
            if it.request.message_id in left:
                answers[it.request.message_id] = await self.handle(it.request)
        share = (time.perf_counter() - begun) / len(members)
        for _ in members:
            heard(share)
        return answers

    async def close(self) -> None:
        """Close the connections."""
        await self.transactions.close()

    async def _handle(self, request: HandlerRequest) -> HandlerResult:
        prepared = self._prepare(request)
        if isinstance(prepared, HandlerResult):
            return prepared
        with prepared.member.context.use():
            return await self._calls.run(prepared.member.call)

    def _prepare(self, request: HandlerRequest) -> Prepared | HandlerResult:
        """Return the call for a request, or an answer. Raises Poison, and what an upcaster raises."""
        event = _read(request)
        route = self._registry.find(event.event_type, event.event_version)
        if route is None:
            return self._without_handler(event)
        context = MessageContext(
            message_id=event.message_id,
            correlation_id=event.correlation_id or event.message_id,
            causation_id=event.causation_id,
            attempt=request.attempt,
        )
        around = RequestContext(correlation_id=context.correlation_id, causation_id=event.message_id)
        with around.use():
            event = route.upcast(event)
            call = Call(
                route.handler,
                route.handler.argument(event),
                {Inject.EVENT: event, Inject.CONTEXT: context},
                Settlement.of_message(request.message_id, request.token),
                self.transactions,
            )
        return Prepared(request, event.partition_key or "", Member(request.message_id, call, around))

    def _without_handler(self, event: IncomingEvent) -> HandlerResult:
        reason = (
            f"no handler for {event.event_type} v{event.event_version}: "
            f"{self._registry.name} handles {self._registry.known()}"
        )[:DETAIL]
        match self._unknown:
            case "dead-letter":
                return HandlerResult(Verdict.POISON, reason)
            case "skip":
                return HandlerResult(Verdict.PROCESSED, reason)
            case "retry":
                return HandlerResult.failed(reason)


def has_plain(registry: Registry) -> bool:
    """Tell whether any function is a plain one, which needs a thread."""
    return not all(it.signature.is_async for it in registry.handlers.values())


def _read(request: HandlerRequest) -> IncomingEvent:
    """Read the event of a request. A request has the handler contract's form, whatever the envelope was."""
    read = read_request(request.subject, {**request.headers, MSG_ID: str(request.message_id)}, request.body)
    return IncomingEvent(
        message_id=request.message_id,
        subject=request.subject,
        event_type=read.event_type,
        event_version=read.event_version,
        occurred_at=read.occurred_at,
        correlation_id=read.correlation_id,
        causation_id=read.causation_id,
        partition_key=read.partition_key,
        headers=request.headers,
        payload=read.payload,
    )
