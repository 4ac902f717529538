"""Keeps the events and tasks of committed transactions in a test, in the order of the commits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from jetrelay_pytest.outbox import OutboxInMemory
from jetrelay_pytest.tasks import TasksInMemory
from relay.adapters.postgres.captured_rows import capturing
from relay.adapters.postgres.enqueue import Row
from relay.domain.model import OutboxEvent


@dataclass(frozen=True, slots=True)
class Memory:
    """Both outboxes of one test."""

    outbox: OutboxInMemory = field(default_factory=OutboxInMemory)
    tasks: TasksInMemory = field(default_factory=TasksInMemory)

    def add(self, rows: Sequence[Row]) -> None:
        """Keep the rows of one transaction."""
        for row in rows:
            if isinstance(row, OutboxEvent):
                self.outbox.add(row)
            else:
                self.tasks.add(row)


@contextmanager
def in_memory() -> Iterator[Memory]:
    """In this block, keep events and tasks of committed sessions in memory, and write none of them."""
    memory = Memory()
    with capturing(memory.add):
        yield memory
