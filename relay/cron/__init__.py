"""Application jobs at fixed times: ``@cron("0 3 * * *", bus=bus)`` on a function that returns a Command.

    @cron("0 3 * * *", bus=bus, timezone="Europe/Kyiv")
    def close_stale_cases() -> CloseStaleCases:
        return CloseStaleCases(older_than_days=90)

The scheduler fires the job, and a worker dispatches the command. ``actor_modules`` names the modules with such
functions, for the scheduler and the workers. See docs/how-to/scheduling.md.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from relay.bus import CommandDispatcher
from relay.cron.expression import Expression
from relay.domain.errors import ConfigurationError
from relay.domain.limits import check_key
from relay.domain.retry import Dead, Never, RetryFunction, RetryLater
from relay.domain.schedule import InvalidSchedule
from relay.execution.retry_rules import RetryRule

__all__ = ["Cron", "CronRegistry", "Dead", "Never", "RetryLater", "cron", "load_crons", "registry"]

Function = TypeVar("Function", bound=Callable[..., Any])

_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """A cron job. ``context`` None means the only context."""

    name: str
    expression: Expression
    function: Callable[..., Any]
    bus: CommandDispatcher
    context: str | None
    misfire_grace: timedelta
    time_limit: timedelta
    max_attempts: int
    retry: RetryRule | None = None

    @property
    def is_async(self) -> bool:
        """Whether the command is dispatched on the worker's event loop, not in a thread."""
        return inspect.iscoroutinefunction(self.function)

    def command(self, scheduled_for: datetime) -> Any:
        """Make the command. The result is a coroutine if the function is async."""
        return self.function(scheduled_for) if inspect.signature(self.function).parameters else self.function()


class CronRegistry:
    """The cron jobs that the loaded modules declare."""

    def __init__(self) -> None:
        self._jobs: dict[str, Cron] = {}

    def add(self, job: Cron) -> None:
        """Add a job. Raises InvalidSchedule if another function has the same name."""
        other = self._jobs.get(job.name)
        if other is not None and _place(other.function) != _place(job.function):
            raise InvalidSchedule(
                f"two cron jobs are called {job.name!r}", field="name", hint="give one of them another name="
            )
        self._jobs[job.name] = job

    def find(self, name: str) -> Cron | None:
        """The job with this name; None if there is none."""
        return self._jobs.get(name)

    def of(self, context: str, contexts: Collection[str]) -> list[Cron]:
        """The jobs of a context, among all ``contexts``.

        Raises InvalidSchedule for a job whose context does not exist, or that names none if there are several.
        """
        for job in self._jobs.values():
            if job.context not in contexts and (job.context is not None or len(contexts) != 1):
                problem = "names no context" if job.context is None else f"names the context {job.context!r}"
                names = ", ".join(contexts) or "none"
                raise InvalidSchedule(
                    f"cron job {job.name!r} {problem}", field="context", hint=f'context="…", one of: {names}'
                )
        return [job for job in self._jobs.values() if job.context in {None, context}]


registry: Final = CronRegistry()


def load_crons(modules: Iterable[str], contexts: Iterable[str]) -> dict[str, list[Cron]]:
    """Import the application's modules, and return the cron jobs that they declare for each context.

    Raises InvalidSchedule, and ConfigurationError for a module that cannot be imported.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigurationError(
                f"{module} cannot be imported: {error}",
                field="actor_modules",
                hint="start where it can be imported",
            ) from error
    names = list(contexts)
    return {context: registry.of(context, names) for context in names}


def cron(  # noqa: PLR0913 - each option is one keyword
    expression: str,
    *,
    bus: CommandDispatcher,
    timezone: str = "UTC",
    context: str | None = None,
    name: str | None = None,
    misfire_grace: timedelta = _DAY,
    time_limit: timedelta = _HOUR,
    max_attempts: int = 5,
    retry: RetryFunction | None = None,
) -> Callable[[Function], Function]:
    """Declare a cron job. The decorated function returns the command, which is dispatched on ``bus``.

    The function takes nothing, or the time for which the job is scheduled. With ``async def`` it needs a bus with
    async sessions. ``context``: the context whose database records the runs; required if there are several.
    ``misfire_grace``: how late a run may begin after an outage; all missed runs become one. An attempt that
    raises, or takes longer than ``time_limit``, is repeated with a back-off, up to ``max_attempts`` attempts.
    ``retry``: says instead, for each exception, when to repeat it; see `RetryFunction`. A command that raises
    `RetryLater` says so itself. Raises InvalidSchedule, InvalidHandler and InvalidKey.
    """
    rule = None if retry is None else RetryRule(retry)
    parsed = Expression(expression, timezone)
    if max_attempts < 1 or misfire_grace < timedelta(seconds=1) or time_limit <= timedelta():
        raise InvalidSchedule(
            "max_attempts, misfire_grace and time_limit are too small", hint="at least 1, 1 s, more than 0"
        )

    def register(function: Function) -> Function:
        job = Cron(
            name=_place(function) if name is None else name,
            expression=parsed,
            function=function,
            bus=bus,
            context=context,
            misfire_grace=misfire_grace,
            time_limit=time_limit,
            max_attempts=max_attempts,
            retry=rule,
        )
        check_key(job.name, "name")
        if len(inspect.signature(function).parameters) > 1:
            raise InvalidSchedule(
                f"{job.name} must take nothing, or the time for which it is scheduled", field="function"
            )
        registry.add(job)
        return function

    return register


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
