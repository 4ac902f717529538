"""Samples the counts every second, during faults too."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, LiteralString, Self, TypeAlias

import psycopg

from chaos.deployment import STREAM
from chaos.history import History, Sample, now
from relay.devstack.http_checks import get

#: Each committed event is counted in its key's row, in the same transaction: cheaper than to count the events.
_OUTBOX: Final = """
SELECT (SELECT coalesce(sum(n), 0)::bigint FROM chaos_keys) - count(*),
       count(*) FILTER (WHERE dead_at IS NULL)
FROM outbox_events
WHERE published_at IS NULL
"""
_INBOX: Final = """
SELECT (SELECT count(*) FROM inbox_messages
        WHERE subscription NOT IN ('audit', 'twin', 'dead_letters')) - count(*), count(*)
FROM inbox_messages
WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND subscription NOT IN ('audit', 'twin', 'dead_letters')
"""
#: How far each subscription has fetched, and how many messages wait for it; None for each if unknown.
Fetched: TypeAlias = tuple[dict[str, int] | None, dict[str, int] | None]
_CONNECTION: Final[dict[str, Any]] = {
    "autocommit": True,
    "connect_timeout": 2,
    "tcp_user_timeout": 5_000,
    "options": "-c statement_timeout=2000",
    "application_name": "chaos-sampler",
}


class Sampler:
    """A thread that records a `Sample` every ``interval`` seconds, and one at the end. A context manager.

    ``committed``: how many events the producers know to be committed. ``fetched``: how far each subscription has
    fetched. Both should reach databases and server directly.
    """

    def __init__(
        self,
        urls: Mapping[str, str],
        history: History,
        committed: Callable[[], int],
        *,
        fetched: Callable[[], Fetched] = lambda: (None, None),
        interval: float = 1.0,
    ) -> None:
        self._fetched = fetched
        self._shop, self._sea = _Reader(urls["shop"], _OUTBOX), _Reader(urls["sea"], _INBOX)
        self._history, self._committed, self._interval = history, committed, interval
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-sampler", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to sample. Returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Take the last sample."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopping.wait(due - time.monotonic()):
            self._sample()
            due = max(due + self._interval, time.monotonic())
        self._sample()
        for reader in (self._shop, self._sea):
            reader.close()

    def _sample(self) -> None:
        at, committed = now(), self._committed()
        published, outbox = self._shop.read()
        handled, inbox = self._sea.read()
        delivered, pending = self._fetched()
        self._history.write(Sample(at, committed, published, handled, outbox, inbox, delivered, pending))


def fetched(monitor: str, node: str | None = None) -> Fetched:
    """Ask a server; ``node``: its name in a cluster, where it knows of the consumers that it leads."""
    answer = get(f"{monitor}/jsz?streams=true&consumers=true")
    if answer is None:
        return None, None
    consumers = [
        consumer
        for account in json.loads(answer).get("account_details", ())
        for stream in account.get("stream_detail", ())
        if stream["name"] == STREAM
        for consumer in stream.get("consumer_detail", ())
        if node is None or consumer.get("cluster", {}).get("leader") == node
    ]
    named = {consumer["name"].rpartition("__")[2]: consumer for consumer in consumers}
    delivered = {name: consumer["delivered"]["consumer_seq"] for name, consumer in named.items()}
    return delivered, {name: consumer.get("num_pending", 0) for name, consumer in named.items()}


class _Reader:
    """Two counts from one database, on a connection that is made anew when it broke."""

    def __init__(self, url: str, statement: LiteralString) -> None:
        self._url, self._statement = url, statement
        self._connection: psycopg.Connection[Any] | None = None

    def read(self) -> tuple[int | None, int | None]:
        """The counts, or None for each when the database does not answer."""
        try:
            if self._connection is None:
                self._connection = psycopg.connect(self._url, **_CONNECTION)
            row = self._connection.execute(self._statement).fetchone()
        except psycopg.Error:
            self.close()
            return None, None
        return row or (None, None)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
        self._connection = None
