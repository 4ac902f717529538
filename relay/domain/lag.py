"""Lag as values: how much work is due in each context and subscription, and since when.

Lag is the work that more workers could do now. Work that waits for its time, for the back-off of a failure or for
an earlier event of its key does not count. A lag that could not be read is an error, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from relay.domain.errors import RelayError


@dataclass(frozen=True, slots=True)
class DueCount:
    """``count`` rows are due, at most as many as backlogs are counted; the oldest of those for ``age_seconds``.

    The age is by the database's clock, and 0 when nothing is due.
    """

    count: int
    age_seconds: float


#: No row is due.
NONE_DUE: Final = DueCount(0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesLag:
    """What is due in the tables of a context: events, tasks, and the messages of each subscription."""

    outbox: DueCount
    tasks: DueCount
    inbox: Mapping[str, DueCount]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLag:
    """What a consumer of a stream has not finished: ``pending`` messages were never delivered.

    ``unacknowledged`` messages were delivered and not acknowledged. Most of them are in the inbox.
    """

    pending: int
    unacknowledged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionLag:
    """What is due for a subscription: in the inbox, and in its stream."""

    inbox: DueCount
    stream: StreamLag

    @property
    def count(self) -> int:
        """How many messages wait. One that is in the inbox and not acknowledged counts once."""
        return self.stream.pending + max(self.stream.unacknowledged, self.inbox.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLag:
    """The lag of a context. Each part that could not be read is the error instead."""

    context: str
    tables: TablesLag | RelayError
    streams: Mapping[str, StreamLag | RelayError]

    def of(self, subscription: str) -> SubscriptionLag | RelayError:
        """The lag of a subscription; the error if its inbox or its stream could not be read."""
        stream = self.streams[subscription]
        if isinstance(self.tables, RelayError):
            return self.tables
        if isinstance(stream, RelayError):
            return stream
        return SubscriptionLag(inbox=self.tables.inbox.get(subscription, NONE_DUE), stream=stream)

    @property
    def errors(self) -> tuple[RelayError, ...]:
        """Why parts of it are not known; empty if all parts are known."""
        parts = (self.tables, *self.streams.values())
        return tuple(it for it in parts if isinstance(it, RelayError))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The lag of a whole fleet: ``rows`` are due, the oldest for ``age_seconds``."""

    rows: int
    age_seconds: float


def total(lags: Iterable[ContextLag]) -> Load | RelayError:
    """Add up the lag of contexts. If any part is not known, return the first error: a part says nothing."""
    rows, age = 0, 0.0
    for lag in lags:
        if isinstance(lag.tables, RelayError):
            return lag.tables
        for subscription in lag.streams:
            if isinstance(waiting := lag.of(subscription), RelayError):
                return waiting
            rows += waiting.count
            age = max(age, waiting.inbox.age_seconds)
        for due in (lag.tables.outbox, lag.tables.tasks):
            rows += due.count
            age = max(age, due.age_seconds)
    return Load(rows=rows, age_seconds=age)
