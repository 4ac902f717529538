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

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from relay.adapters.postgres.conflicts import is_conflict
from relay.adapters.postgres.function_connections import AsyncFunctionTransaction, FunctionTransaction
from relay.adapters.postgres.transactions import HandlerTransactions, RowTransaction, Settlement
from relay.bus import RequestContext
from relay.concurrency import Slots, apart, is_ours
from relay.domain.disclosure import or_else, with_stack, words
from relay.domain.errors import (
    AlreadyProcessed,
    ConnectionsBusy,
    DomainError,
    InvalidHandler,
    MalformedMessage,
    Poison,
    WriteConflict,
)
from relay.domain.model import Away, HandlerResult, Verdict
from relay.domain.outages import says_cancelled, says_held, says_outage
from relay.domain.retry import RetryLater
from relay.execution.retry_rules import RetryRule
from relay.execution.signatures import Inject, Signature

#: How many characters of an error are kept.
MAX_DETAIL_CHARS: Final = 500
#: The answer of a function whose transaction has settled its row.
SETTLED: Final = HandlerResult(Verdict.PROCESSED, settled=True)
_PROCESSED: Final = HandlerResult(Verdict.PROCESSED)
#: How often the transaction of one attempt is tried that loses a conflict with another, such as a deadlock.
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Function:
    """A registered function and what its signature asks for."""

    function: Callable[..., Any]
    signature: Signature
    #: Its retry policy, if it has one.
    retry: RetryRule | None = None

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

    def failed(self, error: BaseException) -> HandlerResult:
        """The answer for an exception, also by the function's retry policy. This may wait; not for the loop."""
        rule, result = self.function.retry, answer(error)
        if not result.held and says_cancelled(error):
            result = replace(result, held=self.transactions.table_is_locked())
        return result if rule is None else rule.judge(result, error, self._attempt)

    async def judged(self, result: HandlerResult, error: BaseException, *, late: bool = False) -> HandlerResult:
        """The same on the loop, for the answer that an exception has. ``late``: the time of the call was up."""
        rule = self.function.retry
        if not result.held and (late or says_cancelled(error)):
            result = replace(result, held=await asyncio.to_thread(self.transactions.table_is_locked))
        return result if rule is None else await rule.judge_async(result, error, self._attempt)

    async def late(self, seconds: float) -> HandlerResult:
        """The answer if the function takes longer than ``seconds``."""
        return await self.judged(timed_out(seconds), TimeoutError(f"no answer within {seconds:g} s"), late=True)

    @property
    def _attempt(self) -> int:
        attempt: int = self.injected[Inject.CONTEXT].attempt
        return attempt

    async def run(self) -> HandlerResult:
        """Await a coroutine function."""
        if not self.function.signature.in_transaction:
            await apart(self.function.call(self.argument, self.injected))
            return _PROCESSED
        for left in range(_TRIES, 0, -1):
            try:
                async with self.transactions.settle_async(self.settlement) as transaction:
                    await self.write_async(transaction)
                break
            except (psycopg.Error, SQLAlchemyError, WriteConflict) as error:
                if left == 1 or not is_conflict(error):
                    raise
        return SETTLED

    async def write_async(self, transaction: AsyncFunctionTransaction) -> None:
        """Await a coroutine function that writes in ``transaction``."""
        own: dict[Inject, Any] = {Inject.ASYNC_CONNECTION: transaction.connection}
        if Inject.ASYNC_SESSION in self.function.signature.others.values():
            own[Inject.ASYNC_SESSION] = transaction.session
        await apart(self.function.call(self.argument, {**self.injected, **own}))

    def run_in_thread(self, own: RowTransaction | None = None) -> HandlerResult:
        """Call a plain function. ``own``: the transaction of its row; by default a new one."""
        if not self.function.signature.in_transaction:
            self._call({})
            return _PROCESSED
        for left in range(_TRIES, 0, -1):
            own = own or self.transactions.for_row(self.settlement.limit)
            try:
                with own.settle(self.settlement) as transaction:
                    self.write(transaction)
                break
            except (psycopg.Error, SQLAlchemyError, WriteConflict) as error:
                if left == 1 or not is_conflict(error):
                    raise
                own = None
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
            return await self.in_thread(call.run_in_thread, call.failed)


async def answered(
    work: Awaitable[HandlerResult], seconds: float, call: PreparedCall | None = None
) -> HandlerResult:
    """Wait for ``work``, at most ``seconds``. Any error becomes an answer, except our own cancellation.

    ``call``: whose function's retry policy judges an error.
    """
    clock = asyncio.timeout(seconds)
    try:
        async with clock:
            return await work
    except BaseException as error:
        late = issubclass(type(error), TimeoutError) and clock.expired()
        if not late and is_ours(error):
            raise
        result = timed_out(seconds) if late else answer(error)
        return result if call is None else await call.judged(result, error, late=late)


def timed_out(seconds: float) -> HandlerResult:
    """The answer of a function that takes too long."""
    return HandlerResult.failed(f"time-out: no answer within {seconds:g} s", away=Away.PERHAPS)


@or_else(lambda it: HandlerResult.failed(with_stack(it)))
def answer(error: BaseException) -> HandlerResult:
    """The answer for an exception of a handler (SDS-047 §12: 409, 422, and everything else)."""
    if isinstance(error, AlreadyProcessed):
        return HandlerResult(Verdict.ALREADY_PROCESSED)
    if isinstance(error, Poison | MalformedMessage):
        return HandlerResult(Verdict.POISON, with_stack(error))
    if isinstance(error, DomainError):
        return HandlerResult(Verdict.REFUSED, with_stack(error))
    if isinstance(error, RetryLater):
        return HandlerResult(Verdict.TRANSIENT, with_stack(error), counts=False, delay=error.delay)
    # The function was not called: it got no connection for its transaction.
    called = not isinstance(error, ConnectionsBusy)
    if called and says_held(error):
        return replace(HandlerResult.failed(with_stack(error), words(error)), held=True)
    away = Away.PERHAPS if called and says_outage(error) else Away.NO
    return replace(HandlerResult.failed(with_stack(error), words(error), away=away), counts=called)
