"""What committed transactions hand over in a test: events and tasks, in the order of the commits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from jetrelay_pytest.outbox import OutboxInMemory
from jetrelay_pytest.tasks import TasksInMemory
from relay.adapters.postgres.enqueue import Row
from relay.adapters.postgres.taking import taking
from relay.domain.model import OutboxEvent


@dataclass(frozen=True, slots=True)
class Memory:
    """Both outboxes of one test."""

    outbox: OutboxInMemory = field(default_factory=OutboxInMemory)
    tasks: TasksInMemory = field(default_factory=TasksInMemory)

    def take(self, rows: Sequence[Row]) -> None:
        """Keep the rows of one transaction."""
        for row in rows:
            if isinstance(row, OutboxEvent):
                self.outbox.take(row)
            else:
                self.tasks.take(row)


@contextmanager
def in_memory() -> Iterator[Memory]:
    """Have sessions that commit in this block hand over their events and tasks, and write none of them."""
    memory = Memory()
    with taking(memory.take):
        yield memory
