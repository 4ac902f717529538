"""Producers for tests: many transactions at once, some rolled back, and a record of what they did."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

import psycopg

from relay import Event, Outbox

OUTBOX = Outbox("vibespro")


def vibe(key: str, **payload: object) -> Event:
    return Event(event_type="vibe_created", aggregate_type="vibe", aggregate_id=key, payload=payload)


def commit_one(url: str, key: str = "v1", **payload: object) -> UUID:
    """Commit one event; returns its id."""
    with psycopg.connect(url) as connection:
        return OUTBOX.add(connection, vibe(key, **payload))


@dataclass
class Producers:
    """Threads that commit ``transactions`` each, of a few events over ``keys``, one in ten rolled back.

    Their transactions overlap: each writes one of very few hot keys besides its own.
    """

    url: str
    keys: Sequence[str]
    threads: int
    transactions: int
    seed: int = 1
    committed: set[str] = field(default_factory=set)
    rolled_back: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._guarded, args=(n,)) for n in range(self.threads)]

    def start(self) -> Producers:
        for thread in self._threads:
            thread.start()
        return self

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _guarded(self, number: int) -> None:
        try:
            self._run(random.Random(self.seed * 1000 + number))
        except BaseException as error:
            self._errors.append(error)

    def _run(self, chance: random.Random) -> None:
        with psycopg.connect(self.url) as connection:
            for _ in range(self.transactions):
                rollback = chance.random() < 0.1
                ids = self._write(connection, chance)
                connection.rollback() if rollback else connection.commit()
                with self._lock:
                    (self.rolled_back if rollback else self.committed).update(ids)

    def _write(self, connection: psycopg.Connection, chance: random.Random) -> list[str]:
        """Several statements, so that another transaction can come between them."""
        row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
        assert row is not None
        # Sorted, as a transaction that adds event by event has to take care of deadlocks itself.
        keys = sorted({chance.choice(self.keys[:3]), *chance.choices(self.keys, k=4)})
        batches = [[vibe(key, xid=row[0], place=place)] for place, key in enumerate(keys)]
        return [str(id) for batch in batches for id in OUTBOX.add_many(connection, batch)]
