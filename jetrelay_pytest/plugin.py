"""The fixtures. A test that asks for none of them imports nothing of jetrelay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from jetrelay_pytest.memory import Memory
    from jetrelay_pytest.outbox import OutboxInMemory
    from jetrelay_pytest.tasks import TasksInMemory


@pytest.fixture
def _jetrelay_memory() -> Iterator[Memory]:
    from jetrelay_pytest.memory import in_memory

    with in_memory() as memory:
        yield memory


@pytest.fixture
def jetrelay_outbox(_jetrelay_memory: Memory) -> OutboxInMemory:
    """Keeps in memory the events that the test's transactions commit, and hands them to handlers."""
    return _jetrelay_memory.outbox


@pytest.fixture
def jetrelay_tasks(_jetrelay_memory: Memory) -> TasksInMemory:
    """Keeps in memory the background tasks that the test's transactions commit, and runs them."""
    return _jetrelay_memory.tasks
