"""Log lines from facts: ids, sizes and reasons, never a payload.

Every line that is written during a request, an event handler or a task carries the ids of its correlation,
causation and trace, from any logger. On a terminal the lines are plain text; elsewhere each line is a JSON object.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import sys
import traceback
from collections.abc import MutableMapping
from typing import IO, Any, Final

import structlog

from relay.bus import RequestContext
from relay.domain import facts
from relay.domain.disclosure import stack_of, trace, traced
from relay.domain.facts import Fact

_LEVELS: Final[dict[type[Fact], int]] = {
    facts.EventDied: logging.ERROR,
    facts.EventExpired: logging.WARNING,
    facts.StreamLossFound: logging.ERROR,
    facts.OrphansFound: logging.ERROR,
    facts.InboxGapFilled: logging.ERROR,
    facts.IncidentRecorded: logging.ERROR,
    facts.MessageDeadLettered: logging.ERROR,
    facts.ScheduledRunFailed: logging.ERROR,
    facts.TaskFailed: logging.ERROR,
    facts.ArchiveFailed: logging.ERROR,
    facts.CircuitOpened: logging.ERROR,
    facts.AlertRaised: logging.ERROR,
    facts.ForeignLetterFound: logging.ERROR,
    facts.DeadLetterDelayed: logging.WARNING,
    facts.SequencesMended: logging.WARNING,
    facts.AlertFailed: logging.WARNING,
    facts.ArchiveHeld: logging.WARNING,
    facts.ProducersBraked: logging.WARNING,
    facts.PullsPaused: logging.WARNING,
    facts.OutageSeen: logging.WARNING,
    facts.PublishFailed: logging.WARNING,
    facts.QueryRefused: logging.WARNING,
    facts.MessageRetried: logging.WARNING,
    facts.LeadLost: logging.WARNING,
    facts.ScheduledRunMissed: logging.WARNING,
    facts.ScheduledRunRetried: logging.WARNING,
    facts.TaskRetried: logging.WARNING,
    facts.TaskUnhandled: logging.WARNING,
    facts.DeliveryExhausted: logging.WARNING,
    facts.DeliveriesRecovered: logging.WARNING,
    facts.LeadTaken: logging.INFO,
    facts.ProducersReleased: logging.INFO,
    facts.PullsResumed: logging.INFO,
    facts.CircuitClosed: logging.INFO,
    facts.RowsArchived: logging.INFO,
    facts.BatchDeleted: logging.INFO,
    facts.ScheduledRunFinished: logging.INFO,
    facts.MessagesReEnqueued: logging.INFO,
}
#: What is called ``class`` everywhere but in Python.
_CLASSES: Final[dict[type[Fact], dict[str, str]]] = {
    it: {"kind": "class"} for it in (facts.MessageDeadLettered, facts.IncidentRecorded, facts.AlertRaised)
}
#: Loggers of code that handles the application's data without knowing it: ours and our libraries'.
_LIBRARIES: Final = {
    *("relay", "consumer", "tasks", "scheduler", "dramatiq", "apscheduler", "asyncio"),
    *("concurrent", "nats", "psycopg", "sqlalchemy", "aiohttp", "redis"),
}
#: What moves a terminal's cursor, colours it, or begins a line that nobody has logged; all but the end of a line.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def configure(level: str, log_format: str) -> None:
    """Set up the root logger. ``log_format``: ``console``, ``json``, or ``auto`` (console on a terminal)."""
    console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    renderers: list[Any] = [structlog.processors.JSONRenderer()]
    if console:
        plain = structlog.dev.plain_traceback
        colors = colored(sys.stderr)
        renderers = [stacked, printable, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
    shared: list[Any] = [
        disclose if console else disclose_values,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        add_correlation,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
    )
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    handler.addFilter(without_arguments)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # These libraries log much at INFO, such as every retry and every job. The facts say the same with ids.
    for noisy in ("dramatiq", "nats"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
    # It warns whenever it leaves a tick out because the one before still runs, many times a second in an outage.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def colored(output: IO[str]) -> bool:
    """Whether text for this output may have colours: it is a terminal that has them, and NO_COLOR is not set."""
    if not output.isatty():
        return False
    from rich.console import Console  # noqa: PLC0415 - only for terminals

    console = Console(file=output)
    return console.color_system is not None and not console.no_color


def disclose(logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Write an exception as a traceback without data, unless the application logs it. A structlog processor."""
    if (error := _failure(line)) is not None:
        own = _is_of_application(logger, line)
        line["exception"] = "".join(traceback.format_exception(error)).rstrip() if own else trace(error)
    return line


def disclose_values(logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """As `disclose`, but as values, so that whoever reads JSON finds type, file and line."""
    if (error := _failure(line)) is not None:
        line["exception"] = traced(error, in_full=_is_of_application(logger, line))
    return line


def stacked(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Write a stack as text, as the console shows it: a line each, below the line it belongs to."""
    if isinstance(line.get("stack"), list):
        line["stack"] = "\n".join(f"    {it}" for it in line["stack"])
    return line


def printable(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Show control characters by their numbers: texts of rows and requests are of strangers.

    Only exceptions, stacks and what an application says may have several lines.
    """
    ours = str(line.get("logger")).partition(".")[0] in _LIBRARIES
    long = {"exception", "stack"} if ours else {"exception", "stack", "event"}
    for name, value in line.items():
        if isinstance(value, str):
            shown = value if name in long else value.replace("\n", "\\n")
            line[name] = _CONTROL.sub(lambda it: ascii(it[0])[1:-1], shown)
    return line


def _failure(line: MutableMapping[str, Any]) -> BaseException | None:
    failure = line.pop("exc_info", None)
    if failure is True:
        failure = sys.exc_info()
    return failure if isinstance(failure, BaseException) else failure[1] if failure else None


def _is_of_application(logger: Any, line: MutableMapping[str, Any]) -> bool:
    """Whether the application logs it. If not, the text is cut to a line: asyncio's others quote errors."""
    name = line["_record"].name if "_record" in line else str(getattr(logger, "name", ""))
    if name.partition(".")[0] not in _LIBRARIES:
        return True
    line["event"] = str(line["event"]).partition("\n")[0]
    return False


def without_arguments(record: logging.LogRecord) -> bool:
    """Show Dramatiq's messages only by actor and id: the arguments of an application's actors are data."""
    if record.name.startswith("dramatiq") and isinstance(record.args, tuple):
        record.args = tuple(
            f"{it.actor_name}({it.message_id})" if hasattr(it, "actor_name") and hasattr(it, "message_id") else it
            for it in record.args
        )
    return True


def add_correlation(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the ids of the current request context. Ids that the line already has stay. A structlog processor."""
    context = RequestContext.current()
    for name in ("correlation_id", "causation_id", "trace_id"):
        value = getattr(context, name)
        if value is not None and line.get(name) is None:
            line[name] = str(value)
    return line


class LogFacts:
    """The listener that writes log lines."""

    def __init__(self) -> None:
        self._log = structlog.stdlib.get_logger("relay")
        self._gate = logging.getLogger("relay")

    def __call__(self, fact: Fact, /) -> None:
        """Write one line, if its level is enabled."""
        level = _LEVELS.get(type(fact), logging.DEBUG)
        if not self._gate.isEnabledFor(level):
            return
        self._log.log(level, type(fact).__name__, **_fields(fact))


def _fields(fact: Fact) -> dict[str, Any]:
    if isinstance(fact, facts.OutboxEventsPublished):
        return {"context": fact.context, "count": len(fact.events), "duplicates": fact.duplicates}
    renamed = _CLASSES.get(type(fact), {})
    found: dict[str, Any] = {
        renamed.get(field.name, field.name): value if isinstance(value, int | float | str | None) else str(value)
        for field in dataclasses.fields(fact)
        if field.repr  # what is only measured
        for value in [getattr(fact, field.name)]
        if value is not None or field.name != "trace_id"
    }
    for name in {"error", "reason"} & found.keys():
        found[name], stack = stack_of(str(found[name]))
        if stack:
            found["stack"] = stack
    return found
