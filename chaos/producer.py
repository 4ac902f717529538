"""One producer: a connection to the shop's database, its transactions, and the known outcome of each."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final
from uuid import UUID

import psycopg
from sqlalchemy import Engine, StaticPool, create_engine
from sqlalchemy import event as listen
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from chaos import raw_rows
from chaos.history import Outcome, Produced
from relay import Event, Outbox
from relay.domain.errors import WriteConflict

Connection = psycopg.Connection[Any]
#: Writes the business rows of an operation: its number and events.
Book = Callable[[Connection, int, Sequence[Produced]], object]

_CONNECTION: Final[dict[str, Any]] = {
    "connect_timeout": 2,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "chaos-producer",
}
_COUNT: Final = """
INSERT INTO chaos_keys (key, n) SELECT * FROM unnest(%s::text[], %s::bigint[])
ON CONFLICT (key) DO UPDATE SET n = chaos_keys.n + excluded.n
RETURNING key, n
"""
_BOOK: Final = """
INSERT INTO chaos_business (event_id, key, place, op)
SELECT *, %s FROM unnest(%s::uuid[], %s::text[], %s::bigint[])
"""


class Producer:
    """Transactions one after the other, from one thread. `watch` may be called from another.

    ``patience``: a transaction that takes longer hangs on a broken connection, in seconds. ``lock_wait``: how long
    it may wait for a key, in seconds. ``book`` writes the business rows, as the last thing before the commit.
    """

    def __init__(
        self, url: str, *, patience: float = 20.0, lock_wait: float = 15.0, book: Book | None = None
    ) -> None:
        self._url = url
        # The session of a connection that broke unnoticed must not hold the locks of its keys for ever.
        lock_timeout = f"-c lock_timeout={lock_wait * 1_000:.0f}"
        self._options = f"-c idle_in_transaction_session_timeout=10000 {lock_timeout}"
        self._patience, self._book = patience, book or write_business
        self._outbox = Outbox("shop", undeclared=True)
        self._connection: Connection | None = None
        self._engine: Engine | None = None
        self._lock = threading.Lock()
        self._began: float | None = None

    def close(self) -> None:
        """Close the connection; the next transaction opens another."""
        with self._lock:
            self._began = None
        if self._engine is not None:
            self._engine.dispose()
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
        self._connection = self._engine = None

    def watch(self) -> None:
        """Break the connection of a transaction that takes too long: its answer may be lost for ever."""
        with self._lock:
            connection = self._connection
            if connection is None or self._began is None or time.monotonic() - self._began < self._patience:
                return
            # Only wake the producer's thread, which must close the connection itself.
            with contextlib.suppress(psycopg.Error, OSError), _socket(connection) as broken:
                broken.shutdown(socket.SHUT_RDWR)

    def plain(
        self, number: int, events: Sequence[Produced], *, together: bool, roll_back: bool = False
    ) -> Outcome:
        """Record events on a psycopg connection, in one call or one by one."""
        return self._run(lambda connection: self._add(connection, number, events, together), roll_back=roll_back)

    def _add(self, connection: Connection, number: int, events: Sequence[Produced], together: bool) -> None:
        if together:
            self._outbox.add_many(connection, map(_event, events))
        else:
            for event in events:
                self._outbox.add(connection, _event(event))
        self._book(connection, number, events)

    def bad(self, number: int, events: Sequence[Produced], kind: int) -> Outcome:
        """Insert rows that can never be published, each of the next kind."""

        def work(connection: Connection) -> None:
            for place, event in enumerate(events):
                raw_rows.insert_bad(connection, UUID(event.id), event.key, event.source.value, kind + place)
            self._book(connection, number, events)

        return self._run(work)

    def large(self, number: int, events: Sequence[Produced], chance: Random) -> Outcome:
        """Insert events with large payloads in raw SQL, as in any language."""

        def work(connection: Connection) -> None:
            for event in events:
                raw_rows.insert(connection, event, raw_rows.large(event.key, chance))
            self._book(connection, number, events)

        return self._run(work)

    def future(self, number: int, events: Sequence[Produced]) -> Outcome:
        """Insert events that are minutes ahead of the database's clock."""

        def work(connection: Connection) -> None:
            raw_rows.insert_ahead(connection, events)
            self._book(connection, number, events)

        return self._run(work)

    def session(self, number: int, events: Sequence[Produced]) -> Outcome:
        """Record events in a SQLAlchemy session, which writes them when it commits."""
        return self._guarded(lambda connection: self._commit_session(connection, number, events))

    def _commit_session(self, connection: Connection, number: int, events: Sequence[Produced]) -> Outcome:
        booked = False

        def book(_: Session) -> None:
            nonlocal booked
            self._book(connection, number, events)
            booked = True

        try:
            with Session(self._sqlalchemy(connection)) as session:
                self._outbox.add_many(session, map(_event, events))
                # After the outbox's own listener, which the session has from its first transaction on.
                listen.listen(session, "before_commit", book)
                session.commit()
        except (psycopg.Error, SQLAlchemyError, WriteConflict):
            self.close()
            return Outcome.UNKNOWN if booked else Outcome.FAILED
        return Outcome.OK

    def _run(self, work: Callable[[Connection], None], *, roll_back: bool = False) -> Outcome:
        return self._guarded(lambda connection: self._commit(connection, work, roll_back))

    def _commit(self, connection: Connection, work: Callable[[Connection], None], roll_back: bool) -> Outcome:
        try:
            work(connection)
            if roll_back:
                connection.rollback()
                return Outcome.FAILED
        except (psycopg.Error, WriteConflict):
            self.close()  # rolls back
            return Outcome.FAILED
        try:
            connection.commit()
        except psycopg.Error:
            self.close()
            return Outcome.UNKNOWN
        return Outcome.OK

    def _guarded(self, transaction: Callable[[Connection], Outcome]) -> Outcome:
        """Run a transaction that `watch` supervises."""
        try:
            connection = self._connect()
        except psycopg.Error:
            return Outcome.FAILED
        with self._lock:
            self._began = time.monotonic()
        try:
            return transaction(connection)
        finally:
            with self._lock:
                self._began = None

    def _connect(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self.close()
            connection = psycopg.connect(self._url, options=self._options, **_CONNECTION)
            with self._lock:
                self._connection = connection
        assert self._connection is not None
        return self._connection

    def _sqlalchemy(self, connection: Connection) -> Engine:
        """An engine that lives on the same connection."""
        if self._engine is None:
            self._engine = create_engine("postgresql+psycopg://", creator=lambda: connection, poolclass=StaticPool)
        return self._engine


def _event(event: Produced) -> Event:
    return Event(
        id=UUID(event.id),
        event_type=event.source.value,
        aggregate_type="case",
        aggregate_id=event.key,
        payload={"key": event.key},
    )


def write_business(connection: Connection, number: int, events: Sequence[Produced]) -> None:
    """Write the business rows, each with its event's place in the commit order of its key.

    Call it after the events were added: jetrelay's locks must separate two transactions over one key. If they did
    not, the numbers would come in another order than the events.
    """
    keys = Counter(event.key for event in events)
    reached = connection.execute(_COUNT, [sorted(keys), [keys[key] for key in sorted(keys)]]).fetchall()
    next_place = {key: n - keys[key] for key, n in reached}
    places = []
    for event in events:
        next_place[event.key] += 1
        places.append(next_place[event.key])
    ids, names = [event.id for event in events], [event.key for event in events]
    connection.execute(_BOOK, [number, ids, names, places])


def _socket(connection: Connection) -> socket.socket:
    """Return our own copy of a connection's socket. To close the copy does not close the connection."""
    return socket.socket(fileno=os.dup(connection.pgconn.socket))
