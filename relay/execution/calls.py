"""Calling a Python function for one row: coroutines on the loop, plain functions in a thread each.

A function may ask for a transaction, by a session or connection parameter. What it writes there commits together
with the settlement of its row, fenced by the claim's token: its effect happens once. Without such a parameter
there is no such transaction, and the function is called at least once.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from relay.adapters.postgres.function_connections import AsyncFunctionTransaction, FunctionTransaction
from relay.adapters.postgres.transactions import HandlerTransactions, RowTransaction, Settlement
from relay.bus import RequestContext
from relay.concurrency import Slots, is_cancelled
from relay.domain.disclosure import with_stack, words
from relay.domain.errors import AlreadyProcessed, ConnectionsBusy, DomainError, InvalidHandler, MalformedMessage
from relay.domain.model import HandlerResult, Verdict
from relay.execution.signatures import Inject, Signature

#: How many characters of an error are kept.
MAX_DETAIL_CHARS: Final = 500
#: The answer of a function whose transaction has settled its row.
SETTLED: Final = HandlerResult(Verdict.PROCESSED, settled=True)
_PROCESSED: Final = HandlerResult(Verdict.PROCESSED)


@dataclass(frozen=True, slots=True)
class Function:
    """A registered function and what its signature asks for."""

    function: Callable[..., Any]
    signature: Signature

    def call(self, argument: Any, injected: Mapping[Inject, Any]) -> Any:
        """Call the function. For an async function this returns its coroutine."""
        named = {name: injected[kind] for name, kind in self.signature.others.items()}
        return self.function(**{self.signature.first: argument}, **named)


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """One call of a function for a row: its arguments, the ``context`` it runs in, and what settles the row."""

    id: UUID
    function: Function
    argument: Any
    injected: Mapping[Inject, Any]
    context: RequestContext
    settlement: Settlement
    transactions: HandlerTransactions

    async def run(self) -> HandlerResult:
        """Await a coroutine function."""
        if not self.function.signature.in_transaction:
            await self.function.call(self.argument, self.injected)
            return _PROCESSED
        async with self.transactions.settle_async(self.settlement) as transaction:
            await self.write_async(transaction)
        return SETTLED

    async def write_async(self, transaction: AsyncFunctionTransaction) -> None:
        """Await a coroutine function that writes in ``transaction``."""
        own: dict[Inject, Any] = {Inject.ASYNC_CONNECTION: transaction.connection}
        if Inject.ASYNC_SESSION in self.function.signature.others.values():
            own[Inject.ASYNC_SESSION] = transaction.session
        await self.function.call(self.argument, {**self.injected, **own})

    def run_in_thread(self, own: RowTransaction | None = None) -> HandlerResult:
        """Call a plain function. ``own``: the transaction of its row; by default a new one."""
        if not self.function.signature.in_transaction:
            self._call({})
            return _PROCESSED
        own = own or self.transactions.for_row(self.settlement.limit)
        with own.settle(self.settlement) as transaction:
            self.write(transaction)
        return SETTLED if transaction.settled else _PROCESSED

    def write(self, transaction: FunctionTransaction) -> None:
        """Call a plain function that writes in ``transaction``."""
        own: dict[Inject, Any] = {Inject.CONNECTION: transaction.connection}
        if Inject.SESSION in self.function.signature.others.values():
            own[Inject.SESSION] = transaction.session
        self._call(own)

    def _call(self, own: Mapping[Inject, Any]) -> None:
        result = self.function.call(self.argument, {**self.injected, **own})
        if inspect.iscoroutine(result):
            result.close()
            raise InvalidHandler(
                "a plain function returned a coroutine, which nobody awaits; declare it async def"
            )


class Calls(Slots):
    """Runs at most ``size`` calls at once. Calls past their time-out count too."""

    async def run(self, call: PreparedCall) -> HandlerResult:
        """Run one call: a coroutine on the loop, a plain function in a thread. Raises what a coroutine raises."""
        with call.context.use():
            if call.function.signature.is_async:
                async with self.slots:
                    return await call.run()
            return await self.in_thread(call.run_in_thread, answer)


async def answered(work: Awaitable[HandlerResult], seconds: float) -> HandlerResult:
    """Wait for ``work``, at most ``seconds``. Any error becomes an answer, except our own cancellation."""
    clock = asyncio.timeout(seconds)
    try:
        async with clock:
            return await work
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, TimeoutError) and clock.expired():
            return timed_out(seconds)
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            raise
        return answer(error)


def timed_out(seconds: float) -> HandlerResult:
    """The answer of a function that takes too long."""
    return HandlerResult.failed(f"time-out: no answer within {seconds:g} s")


def answer(error: BaseException) -> HandlerResult:
    """The answer for an exception of a handler (SDS-047 §12: 409, 422, and everything else)."""
    if isinstance(error, AlreadyProcessed):
        return HandlerResult(Verdict.ALREADY_PROCESSED)
    if isinstance(error, DomainError | MalformedMessage):
        return HandlerResult(Verdict.POISON, with_stack(error))
    # The function was not called: it got no connection for its transaction.
    called = not isinstance(error, ConnectionsBusy)
    return replace(HandlerResult.failed(with_stack(error), words(error)), counts=called)
