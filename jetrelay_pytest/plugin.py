"""The fixtures. A test that asks for none of them imports nothing of jetrelay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from jetrelay_pytest.memory import Memory
    from jetrelay_pytest.outbox import OutboxInMemory
    from jetrelay_pytest.stack import Failpoints, Stack
    from jetrelay_pytest.tasks import TasksInMemory


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option by which a project says where its relay.toml is."""
    parser.addini("jetrelay_config", "the relay.toml for jetrelay_stack (relay.toml)", default="relay.toml")


@pytest.fixture(scope="session")
def jetrelay_stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """PostgreSQL, NATS and Valkey from wheels, with the tables and streams of relay.toml, and its workers."""
    from jetrelay_pytest.stack import running

    root = request.config.rootpath
    with running(root / request.config.getini("jetrelay_config"), root) as stack:
        yield stack


@pytest.fixture
def jetrelay_failpoints(jetrelay_stack: Stack) -> Iterator[Failpoints]:
    """Kills workers of jetrelay_stack at named points of their work."""
    from jetrelay_pytest.stack import armed

    with armed(jetrelay_stack) as points:
        yield points


@pytest.fixture
def _jetrelay_memory() -> Iterator[Memory]:
    from jetrelay_pytest.memory import in_memory

    with in_memory() as memory:
        yield memory


@pytest.fixture
def jetrelay_outbox(_jetrelay_memory: Memory) -> OutboxInMemory:
    """Keeps in memory the events that the test's transactions commit, and gives them to handlers."""
    return _jetrelay_memory.outbox


@pytest.fixture
def jetrelay_tasks(_jetrelay_memory: Memory) -> TasksInMemory:
    """Keeps in memory the background tasks that the test's transactions commit, and runs them."""
    return _jetrelay_memory.tasks
