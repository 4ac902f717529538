"""Asking a function's retry policy what an exception means.

A policy is code of the application, which may raise, hang, or return anything. So it runs in a thread of its own,
for a short time. If it does not answer as it must, the usual back-off applies to its row, and the row's reason
says so.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from relay.concurrency import Threads
from relay.domain.disclosure import full, safe_text
from relay.domain.errors import ClaimLost, InvalidHandler, Outage, TransactionBroken
from relay.domain.model import Away, HandlerResult, Verdict
from relay.domain.retry import LONGEST_DELAY, InvalidRetry, NoRetry, RetryFunction, read_delay

#: Errors that are not the function's: no policy is asked about them.
_NOT_ITS_OWN: Final = (Outage, ClaimLost, TransactionBroken)
_HINT: Final = "return seconds, a timedelta, Never or Dead"
_log = logging.getLogger("relay")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLimits:
    """``seconds``: how long a policy may take. ``calls``: how many calls of it may run in a process at once."""

    seconds: float = 1.0
    calls: int = 16


USUAL_RULE_LIMITS: Final = RuleLimits()


class RetryRule:
    """The retry policy of a function. Safe in any thread. Raises InvalidHandler if it cannot be called."""

    def __init__(self, policy: RetryFunction, limits: RuleLimits = USUAL_RULE_LIMITS) -> None:
        self.name = _name_of(policy)
        _check(policy, self.name)
        self._policy, self._limits = policy, limits
        self._threads, self._lock, self._running = Threads(), threading.Lock(), 0

    def judge(self, result: HandlerResult, error: BaseException, attempt: int) -> HandlerResult:
        """An answer for an exception, changed as the policy says. This waits for the policy."""
        if not _is_asked(result, error):
            return result
        return self._ruled(result, self._wait(self._begin(error, attempt)))

    async def judge_async(self, result: HandlerResult, error: BaseException, attempt: int) -> HandlerResult:
        """The same on the event loop."""
        if not _is_asked(result, error):
            return result
        asked = self._begin(error, attempt)
        await asyncio.wait([asyncio.wrap_future(asked)], timeout=self._limits.seconds)
        return self._ruled(result, self._wait(asked, 0))

    def _begin(self, error: BaseException, attempt: int) -> Future[object]:
        """Ask in a thread. The future has the answer, or an InvalidRetry, as a value."""
        asked: Future[object] = Future()
        asked.set_running_or_notify_cancel()
        with self._lock:
            if self._running >= self._limits.calls:
                asked.set_result(InvalidRetry(f"{self._running} calls of it have not returned"))
                return asked
            self._running += 1
        around = contextvars.copy_context()

        def ask() -> None:
            try:
                said: object = around.run(self._policy, error, attempt)
            except BaseException as problem:
                said = InvalidRetry(f"it raised {safe_text(problem)}")
            with self._lock:
                self._running -= 1
            asked.set_result(said)

        try:
            self._threads.run(ask)
        except RuntimeError as problem:
            with self._lock:
                self._running -= 1
            asked.set_result(InvalidRetry(f"it cannot be called: {problem}"))
        return asked

    def _wait(self, asked: Future[object], seconds: float | None = None) -> object:
        try:
            return asked.result(self._limits.seconds if seconds is None else seconds)
        except TimeoutError:
            return InvalidRetry(f"no answer within {self._limits.seconds:g} s", hint="a policy must not wait")

    def _ruled(self, result: HandlerResult, said: object) -> HandlerResult:
        if type(said) is NoRetry:
            detail = full(result.detail, f"its retry policy says {said.value}")
            # What the application decides is not in doubt, whether or not its handler may be away.
            result = replace(result, detail=detail, away=Away.NO)
            return (
                replace(result, verdict=Verdict.REFUSED) if said is NoRetry.NEVER else replace(result, final=True)
            )
        try:
            return replace(result, delay=_delay(said))
        except InvalidRetry as problem:
            _log.warning("the retry policy %s is not used: %s", self.name, problem)
            return replace(result, detail=full(result.detail, f"its retry policy is not used: {problem}"))


def _is_asked(result: HandlerResult, error: BaseException) -> bool:
    """Whether a policy decides: a retry follows, nobody has said when, and the error is the function's own."""
    return result.verdict is Verdict.TRANSIENT and result.counts and not isinstance(error, _NOT_ITS_OWN)


def _delay(said: object) -> timedelta:
    """What a policy says, as a delay. Raises InvalidRetry."""
    if type(said) is InvalidRetry:
        raise said
    if inspect.iscoroutine(said):
        said.close()
    try:
        delay = read_delay(said)
    except InvalidRetry:
        raise
    except BaseException as problem:  # a number of a class of its own may do anything
        raise InvalidRetry(f"its answer raised {safe_text(problem)}") from None
    if not timedelta(0) <= delay <= LONGEST_DELAY:
        raise InvalidRetry("the delay is negative or longer than seven days", field="delay", hint=_HINT)
    return delay


def _check(policy: Any, name: str) -> None:
    if not callable(policy):
        raise InvalidHandler(f"{name} is no function", field="retry", hint="retry=policy, a plain function")
    if inspect.iscoroutinefunction(policy):
        raise InvalidHandler(f"{name} must be a plain function, not async", field="retry")
    try:
        inspect.signature(policy).bind(ValueError(), 1)
    except TypeError:
        raise InvalidHandler(f"{name} must take an exception and an attempt", field="retry") from None
    except ValueError:  # no signature to be had
        return


def _name_of(policy: Any) -> str:
    named = policy if hasattr(policy, "__qualname__") else type(policy)
    return f"{named.__module__}.{named.__qualname__}"
