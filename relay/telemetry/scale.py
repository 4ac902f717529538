"""GET /scale: how much is due, as a number that an autoscaler can read. What is not known is an error, never 0."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from http import HTTPStatus
from threading import Lock
from typing import Any, Final
from urllib.parse import parse_qs

from relay.domain.backlogs import MAX_COUNTED_ROWS
from relay.domain.errors import InvalidRequest, LagUnknown, RelayError, UnknownContext, of_context
from relay.domain.facts import Fact, LagSampled
from relay.domain.lag import ContextLag, SubscriptionLag

#: A lag older than so many intervals is read anew.
_FRESH_INTERVALS: Final = 1.2
#: A lag older than so many intervals is not shown.
_USABLE_INTERVALS: Final = 3
#: After so many seconds a lag is read anew if some of its parts could not be read.
_FAILED_S: Final = 2.0
#: How long an answer waits for a reading, in seconds. KEDA waits for 3.
_PATIENCE_S: Final = 2.5
_PARAMETERS: Final = frozenset({"context", "subscription"})

#: Starts to read the lag of a context, in any thread. A `LagSampled` is stated before the future is done.
Ask = Callable[[str], "Future[None]"]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Reading:
    lag: ContextLag
    taken: float


class Scale:
    """The listener that keeps the last lag of each context, and answers with it.

    Every scheduler can answer. One that leads has read the lag a moment ago. Another reads it when it is
    asked, but once in an ``interval`` of seconds, however many ask. ``subscriptions``: those of each context.
    ``patience``: how long an answer waits for a reading, in seconds.
    """

    def __init__(
        self,
        subscriptions: Mapping[str, Collection[str]],
        interval: float,
        ask: Ask,
        clock: Callable[[], float] = time.monotonic,
        patience: float = _PATIENCE_S,
    ) -> None:
        self._subscriptions = subscriptions
        self._interval = interval
        self._ask = ask
        self._clock = clock
        self._patience = patience
        self._lock = Lock()
        self._readings: dict[str, _Reading] = {}
        self._under_way: dict[str, Future[None]] = {}

    def __call__(self, fact: Fact, /) -> None:
        """Keep a lag."""
        if isinstance(fact, LagSampled):
            self._readings[fact.context] = _Reading(fact.lag, self._clock())

    def answer(self, query: str) -> tuple[HTTPStatus, Json]:
        """Return the status and the body for a query string. Waits up to ``patience``. Runs in any thread."""
        try:
            context, subscription = self._parameters(query)
            readings = self._current(list(self._subscriptions) if context is None else [context])
        except RelayError as error:
            return _status(error), _refusal(error)
        for name, reading in readings.items():
            if errors := reading.lag.errors:
                return _status(errors[0]), _refusal(errors[0], name)
        shown = {name: self._shown(it) for name, it in readings.items()}
        if context is None:
            return HTTPStatus.OK, _fleet(shown)
        return HTTPStatus.OK, shown[context] if subscription is None else shown[context]["subscriptions"][
            subscription
        ]

    def _parameters(self, query: str) -> tuple[str | None, str | None]:
        """The context and the subscription of a query. Raises InvalidRequest and UnknownContext."""
        found = parse_qs(query, keep_blank_values=True)
        if unknown := sorted(found.keys() - _PARAMETERS):
            raise InvalidRequest(
                f"no parameter is called {unknown[0][:80]!r}", hint="known: context, subscription"
            )
        if any(len(values) > 1 for values in found.values()):
            raise InvalidRequest("a parameter is given twice", hint="ask once for each context or subscription")
        context, subscription = (found.get(name, [None])[0] for name in ("context", "subscription"))
        if context is None and subscription is not None:
            raise InvalidRequest("a subscription without its context", hint="add context=NAME")
        if context is not None:
            known = of_context(self._subscriptions, context)
            if subscription is not None and subscription not in known:
                raise UnknownContext(
                    f"context {context!r} has no subscription {subscription[:80]!r}",
                    hint=f"known: {', '.join(known) or 'none'}",
                )
        return context, subscription

    def _current(self, contexts: Iterable[str]) -> dict[str, _Reading]:
        """The lag of contexts, none older than `_USABLE_INTERVALS`. Raises LagUnknown."""
        readings = {name: self._begin(name) for name in contexts}
        wait([it for name, it in readings.items() if it is not None and not self._usable(name)], self._patience)
        if late := [name for name in readings if not self._usable(name)]:
            raise LagUnknown(
                f"the lag of context {late[0]} was not read within {self._patience:g} s", hint="ask again"
            )
        return {name: self._readings[name] for name in readings}

    def _begin(self, context: str) -> Future[None] | None:
        """Have a lag read that is not fresh; returns the reading under way, if there is one."""
        with self._lock:
            reading = self._under_way.get(context)
            if reading is not None and not reading.done():
                return reading
            if self._fresh(context):
                return None
            reading = self._under_way[context] = self._ask(context)
            return reading

    def _fresh(self, context: str) -> bool:
        reading = self._readings.get(context)
        limit = _FAILED_S if reading is not None and reading.lag.errors else self._interval * _FRESH_INTERVALS
        return self._age(context) <= limit

    def _age(self, context: str) -> float:
        reading = self._readings.get(context)
        return float("inf") if reading is None else self._clock() - reading.taken

    def _usable(self, context: str) -> bool:
        return self._age(context) <= self._interval * _USABLE_INTERVALS

    def _shown(self, reading: _Reading) -> Json:
        return {**_context(reading.lag), "read_seconds_ago": round(self._clock() - reading.taken, 3)}


def _context(lag: ContextLag) -> Json:
    """The lag of a context as numbers. All of its parts are known."""
    assert not isinstance(lag.tables, RelayError)
    outbox, tasks = lag.tables.outbox, lag.tables.tasks
    found = {name: lag.of(name) for name in lag.streams}
    subscriptions = {name: _subscription(it) for name, it in found.items() if isinstance(it, SubscriptionLag)}
    messages = sum(it["messages"] for it in subscriptions.values())
    ages = [outbox.age_seconds, tasks.age_seconds, *(it["oldest_seconds"] for it in subscriptions.values())]
    return {
        "value": outbox.count + tasks.count + messages,
        "events": outbox.count,
        "tasks": tasks.count,
        "messages": messages,
        "oldest_seconds": round(max(ages), 3),
        "rows_counted_up_to": MAX_COUNTED_ROWS,
        "subscriptions": subscriptions,
    }


def _subscription(lag: SubscriptionLag) -> Json:
    return {
        "value": lag.count,
        "messages": lag.count,
        "in_stream": lag.stream.pending,
        "unacknowledged": lag.stream.unacknowledged,
        "in_inbox": lag.inbox.count,
        "oldest_seconds": round(lag.inbox.age_seconds, 3),
    }


def _fleet(contexts: Mapping[str, Json]) -> Json:
    sums = {key: sum(it[key] for it in contexts.values()) for key in ("value", "events", "tasks", "messages")}
    ages = ("oldest_seconds", "read_seconds_ago")
    oldest = {key: max((it[key] for it in contexts.values()), default=0.0) for key in ages}
    return {**sums, **oldest, "rows_counted_up_to": MAX_COUNTED_ROWS, "contexts": contexts}


def _status(error: RelayError) -> HTTPStatus:
    match error:
        case UnknownContext():
            return HTTPStatus.NOT_FOUND
        case InvalidRequest():
            return HTTPStatus.BAD_REQUEST
        case _:
            return HTTPStatus.SERVICE_UNAVAILABLE


def _refusal(error: RelayError, context: str | None = None) -> Json:
    fields = {"code": error.code, "message": error.message, "hint": error.hint, "context": context}
    return {"error": {key: value for key, value in fields.items() if value is not None}}
