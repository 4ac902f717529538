"""PythonEventHandler: PORT-047-005 in this process, for ``handler = "python:myapp.handlers"`` (DESIGN §6).

What a handler writes in the inbox transaction commits together with ``processed_at``. The claim's token
fences the commit, so the effect happens exactly once. A handler that takes neither session nor connection
has no such transaction. Like a service, it is called at least once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Literal, TypeAlias
from uuid import UUID

from consumer.handlers import HandlerRegistry, HandlerRoute, IncomingEvent, Inject, MessageContext
from relay.adapters.postgres.transactions import HandlerTransactions, Settlement
from relay.bus import RequestContext
from relay.domain.envelopes import MSG_ID, read_request
from relay.domain.errors import InvalidHandler
from relay.domain.identity import CAUSATION_ID, CORRELATION_ID, ID, shown
from relay.domain.model import HandlerResult, Verdict
from relay.domain.subject import ALL_COMMANDS, command_name
from relay.domain.topology import covers
from relay.events import declared_commands
from relay.execution.batch import MAX_TRANSACTION_S, BatchCalls
from relay.execution.calls import MAX_DETAIL_CHARS, Calls, PreparedCall, answer, answered
from relay.execution.chunk import Answered, side_by_side
from relay.ports import HandlerRequest

#: How many calls of a subscription may run at once in a process. Calls past their time-out count too.
MAX_CALLS: Final = 16

Unknown: TypeAlias = Literal["wait", "dead-letter", "skip", "retry"]


class PythonEventHandler:
    """Calls the functions of a registry: coroutines on the event loop, each plain function in a thread.

    ``plain`` says whether any function is plain; ``writes``, whether a plain one writes in its transaction.
    ``unknown`` says what happens to an event without a function. ``timeout`` (seconds) limits a whole call. A
    plain function cannot be stopped. But the retry takes its claim away, so it can no longer commit.
    ``max_transaction``: see `BatchCalls`.
    """

    def __init__(
        self,
        registry: HandlerRegistry,
        transactions: HandlerTransactions,
        *,
        timeout: timedelta,
        unknown: Unknown = "dead-letter",
        max_transaction: float = MAX_TRANSACTION_S,
    ) -> None:
        self.registry = registry
        self.transactions = transactions
        self.timeout = timeout.total_seconds()
        plain = [it.signature for it in registry.handlers.values() if not it.signature.is_async]
        self.plain = has_plain(registry)
        self._commands = registry.commands
        self.writes = any(signature.in_transaction for signature in plain)
        self._unknown = unknown
        self._calls = Calls(MAX_CALLS)
        self._batches = BatchCalls(transactions, self._calls, self.timeout, max_transaction)
        # Chunks may use half of the calls, so that the other half never waits for a chunk.
        self._side_by_side = side_by_side(self, asyncio.Semaphore(max(1, MAX_CALLS // 2)))

    async def handle(self, request: HandlerRequest) -> HandlerResult:
        """Handle one request, see the port. Every exception of the function becomes an answer."""
        call = await asyncio.to_thread(self.prepared, request) if request.brought else self.prepared(request)
        if isinstance(call, HandlerResult):
            return call
        return await answered(self._calls.run(call), self.timeout, call)

    async def handle_all(self, requests: Sequence[HandlerRequest]) -> dict[UUID, Answered]:
        """Handle many requests, see `relay.execution.chunk.AskAll`.

        Functions that write in the inbox transaction share one transaction and its time.
        """
        answers: dict[UUID, Answered] = {}
        sharing: dict[bool, list[tuple[HandlerRequest, PreparedCall]]] = {False: [], True: []}
        others: list[HandlerRequest] = []
        for request in requests:
            call = self.prepared(request)
            if isinstance(call, HandlerResult):
                answers[request.message_id] = call, 0.0
            elif call.function.signature.in_transaction:
                sharing[call.function.signature.is_async].append((request, call))
            else:
                others.append(request)
        for members in sharing.values():
            answers |= await self._share(members)
        answers |= await self._side_by_side(others)
        return answers

    async def _share(self, members: list[tuple[HandlerRequest, PreparedCall]]) -> dict[UUID, Answered]:
        if not members:
            return {}
        begun = time.perf_counter()
        # Sorted by key, so that two transactions take their row locks in the same order.
        members.sort(key=lambda it: it[1].injected[Inject.EVENT].partition_key or "")
        answers, rest = await self._batches.run([call for _, call in members], members[0][0].token)
        left = set(rest)
        for request, _ in members:
            if request.message_id in left:
                answers[request.message_id] = await self.handle(request)
        share = (time.perf_counter() - begun) / len(members)
        return {id: (answer, share) for id, answer in answers.items()}

    def prepared(self, request: HandlerRequest) -> PreparedCall | HandlerResult:
        """Return the call for a request, or an answer when no call is needed."""
        try:
            return self.prepare(request)
        except BaseException as error:
            return answer(error)

    def prepare(self, request: HandlerRequest) -> PreparedCall | HandlerResult:
        """Return the call for a request, or an answer. Raises Poison, and what an upcaster raises."""
        event = _read(request)
        route = self._find(event)
        if route is None:
            return self._without_handler(event)
        context = MessageContext(
            message_id=event.message_id,
            correlation_id=event.correlation_id or event.message_id,
            causation_id=event.causation_id,
            attempt=request.attempt,
            idempotency_key=request.idempotency_key or str(event.message_id),
            actor=request.actor,
        )
        around = RequestContext(
            correlation_id=context.correlation_id,
            causation_id=event.message_id,
            traceparent=request.traceparent,
        )
        with around.use():
            event = route.upcast(event)
            return PreparedCall(
                request.message_id,
                route.handler,
                route.handler.argument(event),
                {Inject.EVENT: event, Inject.CONTEXT: context},
                around,
                Settlement("inbox/settle", {"message_id": request.message_id, "token": request.token}),
                self.transactions,
            )

    def _find(self, event: IncomingEvent) -> HandlerRoute | None:
        """Find the function of an event by its type, that of a command by its subject."""
        if self._commands and (name := command_name(event.subject)) is not None:
            return self.registry.find(name, event.event_version)
        return self.registry.find(event.event_type, event.event_version)

    def _without_handler(self, event: IncomingEvent) -> HandlerResult:
        reason = (
            f"no handler for {event.event_type} v{event.event_version}: "
            f"{self.registry.name} handles {self.registry.known()}"
        )[:MAX_DETAIL_CHARS]
        match self._unknown:
            case "wait":
                return HandlerResult(Verdict.UNKNOWN, reason)
            case "dead-letter":
                return HandlerResult(Verdict.REFUSED, reason)
            case "skip":
                return HandlerResult(Verdict.PROCESSED, reason)
            case "retry":
                return HandlerResult.failed(reason)


def has_plain(registry: HandlerRegistry) -> bool:
    """Tell whether any function is a plain one, which needs a thread."""
    return not all(it.signature.is_async for it in registry.handlers.values())


def _read(request: HandlerRequest) -> IncomingEvent:
    """The event of a request."""
    id = request.source_id or request.message_id
    read = request.event
    if read is None:
        read = read_request(request.subject, {**request.headers, MSG_ID: str(id)}, bytes(request.body))
    originals = read.originals
    return IncomingEvent(
        message_id=shown(read.message_id, originals, ID),
        subject=request.subject,
        event_type=read.event_type,
        event_version=read.event_version,
        occurred_at=read.occurred_at,
        correlation_id=shown(read.correlation_id, originals, CORRELATION_ID),
        causation_id=shown(read.causation_id, originals, CAUSATION_ID),
        partition_key=read.partition_key,
        headers=request.headers,
        payload=read.payload,
    )


# --- when a worker starts ---


def check_subscriptions(modules: Sequence[tuple[str, HandlerRegistry]]) -> None:
    """Raise InvalidHandler if a handler names a subscription that never calls it.

    ``modules``: the name of each subscription with Python handlers, and what its module registers.
    """
    called = {(name, id(it)) for name, module in modules for it in module.named.get(name, {}).values()}
    for _, module in modules:
        for name, handlers in module.named.items():
            for (kind, version), handler in handlers.items():
                if (name, id(handler)) not in called:
                    raise InvalidHandler(
                        f"{module.name} handles {kind} v{version} for {name}, no subscription that uses it",
                        field="subscription",
                        hint=f"subscriptions with Python handlers: {', '.join(sorted({it for it, _ in modules}))}",
                    )


def check_commands(registry: HandlerRegistry, filter_subject: str) -> None:
    """Raise InvalidHandler if a module lacks the handler of a command that a filter matches.

    One handler executes a command. The check knows the commands declared in this process, and the one that the
    filter names. A filter for more than commands is not checked, because its stream may hold no commands.
    """
    if not covers(ALL_COMMANDS, filter_subject):
        return
    for subject, version in sorted(declared_commands):
        name = command_name(subject) or ""
        if covers(filter_subject, subject) and registry.find(name, version) is None:
            raise _without_handler(registry, f"{name} v{version}")
    named = command_name(filter_subject)
    if named is not None and named not in {kind for kind, _ in registry.handlers}:
        raise _without_handler(registry, named)


def _without_handler(registry: HandlerRegistry, command: str) -> InvalidHandler:
    message = f"the command {command} has no handler in {registry.name}, which handles {registry.known()}"
    return InvalidHandler(message, field="handler", hint="decorate a function with @handles(...)")
