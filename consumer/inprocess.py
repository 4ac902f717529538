"""PythonEventHandler: PORT-047-005 in this process, for ``handler = "python:myapp.handlers"`` (DESIGN §6).

What a handler writes in the inbox transaction commits together with ``processed_at``, fenced by the
claim's token: exactly once in effect. A handler that takes neither session nor connection has no such
transaction, and is then, like a service, called at least once.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

from sqlalchemy.exc import DBAPIError

from consumer.handlers import Handler, Registry
from consumer.signatures import IncomingEvent, Inject, MessageContext
from relay.adapters.postgres.handling import Claim, HandlerTransactions
from relay.adapters.postgres.pool import first_line
from relay.bus import RequestContext
from relay.domain.envelope import DEFAULT_ENVELOPE, MSG_ID, decode
from relay.domain.errors import AlreadyProcessed, DomainError, InvalidHandler, MalformedMessage, RelayError
from relay.domain.model import HandlerResult, Verdict
from relay.ports import HandlerRequest

#: How many calls of one subscription may run at once in a process, those that outlived their time-out included.
CALLS: Final = 16
_DETAIL: Final = 500
_SETTLED: Final = HandlerResult(Verdict.PROCESSED, settled=True)
_PROCESSED: Final = HandlerResult(Verdict.PROCESSED)

Unknown: TypeAlias = Literal["dead-letter", "skip", "retry"]


class PythonEventHandler:
    """Calls the functions of a registry: coroutines on the loop, plain functions in a thread each.

    ``unknown``: what becomes of an event that no function is for. ``timeout`` bounds a call as a whole;
    a plain function cannot be stopped, but the retry that follows takes its claim away, and so its commit.
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
        self._transactions = transactions
        self._timeout = timeout.total_seconds()
        self._unknown = unknown
        self._slots = asyncio.Semaphore(CALLS)

    async def handle(self, request: HandlerRequest) -> HandlerResult:
        """See the port. Whatever the function raises becomes an answer."""
        clock = asyncio.timeout(self._timeout)
        try:
            async with clock:
                return await self._handle(request)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, TimeoutError) and clock.expired():
                return HandlerResult.failed(f"time-out: no answer within {self._timeout:g} s")
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            return answer(error)

    async def close(self) -> None:
        """Close the connections."""
        await self._transactions.close()

    async def _handle(self, request: HandlerRequest) -> HandlerResult:
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
        with RequestContext(correlation_id=context.correlation_id, causation_id=event.message_id).use():
            event = route.upcast(event)
            call = _Call(
                route.handler,
                route.handler.argument(event),
                {Inject.EVENT: event, Inject.CONTEXT: context},
                Claim(request.message_id, request.token),
                self._transactions,
            )
            if route.handler.signature.is_async:
                async with self._slots:
                    return await call.run()
            return await self._in_thread(call.run_in_thread)

    def _without_handler(self, event: IncomingEvent) -> HandlerResult:
        reason = (
            f"no handler for {event.event_type} v{event.event_version}: "
            f"{self._registry.name} handles {self._registry.known()}"
        )[:_DETAIL]
        match self._unknown:
            case "dead-letter":
                return HandlerResult(Verdict.POISON, reason)
            case "skip":
                return HandlerResult(Verdict.PROCESSED, reason)
            case "retry":
                return HandlerResult.failed(reason)

    async def _in_thread(self, call: Callable[[], HandlerResult]) -> HandlerResult:
        """Run ``call`` in a thread of its own, which gives its slot back when it ends, in time or not.

        A daemon, so that a function that hangs does not keep the process from stopping.
        """
        await self._slots.acquire()
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[HandlerResult] = loop.create_future()
        around = contextvars.copy_context()

        def finish(result: HandlerResult) -> None:
            self._slots.release()
            if not outcome.done():
                outcome.set_result(result)

        def run() -> None:
            try:
                result = around.run(call)
            except BaseException as error:
                result = answer(error)
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish, result)

        try:
            threading.Thread(target=run, name="jetrelay-handler", daemon=True).start()
        except RuntimeError:
            self._slots.release()
            raise
        return await outcome


class _Call:
    """One call of a handler with everything it asked for."""

    def __init__(
        self,
        handler: Handler,
        argument: Any,
        injected: Mapping[Inject, Any],
        claim: Claim,
        transactions: HandlerTransactions,
    ) -> None:
        self._handler = handler
        self._argument = argument
        self._injected = injected
        self._claim = claim
        self._transactions = transactions

    async def run(self) -> HandlerResult:
        """Await a coroutine function."""
        if not self._handler.signature.in_transaction:
            await self._handler.call(self._argument, self._injected)
            return _PROCESSED
        async with self._transactions.settle_async(self._claim) as transaction:
            own = {Inject.ASYNC_SESSION: transaction.session, Inject.ASYNC_CONNECTION: transaction.connection}
            await self._handler.call(self._argument, {**self._injected, **own})
        return _SETTLED

    def run_in_thread(self) -> HandlerResult:
        """Call a plain function."""
        if not self._handler.signature.in_transaction:
            self._call({})
            return _PROCESSED
        with self._transactions.settle(self._claim) as transaction:
            self._call({Inject.SESSION: transaction.session, Inject.CONNECTION: transaction.connection})
        return _SETTLED

    def _call(self, own: Mapping[Inject, Any]) -> None:
        result = self._handler.call(self._argument, {**self._injected, **own})
        if inspect.iscoroutine(result):
            result.close()
            raise InvalidHandler(
                "a plain function returned a coroutine, which nobody awaits; declare it async def"
            )


def answer(error: BaseException) -> HandlerResult:
    """What an exception of a handler means (SDS-047 §12: 409, 422, and everything else)."""
    if isinstance(error, AlreadyProcessed):
        return HandlerResult(Verdict.ALREADY_PROCESSED, _describe(error))
    if isinstance(error, DomainError | MalformedMessage):
        return HandlerResult(Verdict.POISON, _describe(error))
    return HandlerResult.failed(_describe(error))


def _describe(error: BaseException) -> str:
    """Type and message, in one bounded line. Of a database error the driver's first: further ones quote values."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        error = error.orig
    message = error.message if isinstance(error, RelayError) else first_line(error)
    name = type(error).__name__
    return (name if message in ("", name) else f"{name}: {message}")[:_DETAIL]


def _read(request: HandlerRequest) -> IncomingEvent:
    """The event in the request, which has the form of the handler contract whatever the envelope was."""
    headers = {**request.headers, MSG_ID: str(request.message_id)}
    read = decode(DEFAULT_ENVELOPE, request.subject, headers, request.body)
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


def _is_cancelled() -> bool:
    """Whether the caller has cancelled us; a CancelledError may also come out of the handler's own tasks."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
