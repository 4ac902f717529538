"""Real servers from wheels for each test that asks, started once per session; a database of its own for each test.

A missing wheel is an error, not a reason to skip.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.devstack import NatsServer, PostgresServer, ValkeyServer

# The product's settings come from the tests, never from the shell that runs them. At import, so that no module
# under test can have read them before.
for _name in [*os.environ]:
    if _name.startswith(("RELAY_", "NATS_")) or _name in {"DATABASE_URL", "REDIS_URL"}:
        del os.environ[_name]

_TIERS = {"unit", "contract", "integration", "acceptance", "chaos", "migration"}
_TEMPLATE = "relay_template"
#: What takes long begins early. Next to the first, which loads a machine most, come some that wait for little else
#: than answers, and no two of the others that load it much follow each other.
_FIRST = (
    "test_failpoints",
    "test_delivery",
    "test_python_handlers",
    "test_ordered",
    "test_nemeses",
    "test_demo",
    "test_planted_bugs",
    "test_tasks",
    "test_task_failpoints",
)
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its folder: ``pytest -m unit``."""
    for item in items:
        for tier in _TIERS.intersection(item.path.relative_to(Path(__file__).parent).parts):
            item.add_marker(tier)
    items.sort(key=_when)


def _when(item: pytest.Item) -> int:
    """Order the files as `_FIRST` does; the others follow as they were."""
    return _FIRST.index(item.path.stem) if item.path.stem in _FIRST else len(_FIRST)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def server_root() -> Iterator[Path]:
    """A directory for servers. Not pytest's own: as root that one shuts out the account PostgreSQL runs as."""
    root = Path(tempfile.mkdtemp(prefix="jetrelay-tests-"))
    root.chmod(0o711)
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def server_directory(server_root: Path) -> Path:
    """A directory for the servers of one test, not yet made."""
    return server_root / f"test-{next(_numbers)}"


# --- shared by the whole session: leave them running ---


@pytest.fixture(scope="session")
def postgres(server_root: Path) -> Iterator[PostgresServer]:
    with PostgresServer(server_root / "postgres") as server:
        yield server


@pytest.fixture(scope="session")
def nats_server(server_root: Path) -> Iterator[NatsServer]:
    with NatsServer(server_root / "nats") as server:
        yield server


@pytest.fixture(scope="session")
def valkey(server_root: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(server_root / "valkey") as server:
        yield server


@pytest.fixture(scope="session")
def database_template(postgres: PostgresServer) -> str:
    """The name of a migrated database to copy. Nobody may be connected to it while a copy is made."""
    from relay.adapters.postgres.migrations import upgrade

    upgrade(postgres.create_database(_TEMPLATE))
    return _TEMPLATE


@pytest.fixture
def database_url(postgres: PostgresServer, database_template: str) -> Iterator[str]:
    """A migrated, empty database for this test alone."""
    name = f"test_{next(_numbers)}"
    yield postgres.create_database(name, template=database_template)
    postgres.drop_database(name)


# --- one test's own: to be killed, paused, restarted ---


@pytest.fixture
def own_postgres(server_directory: Path) -> Iterator[PostgresServer]:
    with PostgresServer(server_directory / "postgres") as server:
        yield server


@pytest.fixture
def own_nats(server_directory: Path) -> Iterator[NatsServer]:
    with NatsServer(server_directory / "nats") as server:
        yield server


@pytest.fixture
def own_valkey(server_directory: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(server_directory / "valkey") as server:
        yield server
