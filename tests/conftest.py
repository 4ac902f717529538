"""Real servers from wheels for each test that asks, started once per session; a database of its own for each test.

A missing wheel is an error, not a reason to skip.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import psycopg
import pytest

import relay.outbox
from relay.devstack import NatsServer, PostgresServer, ValkeyServer
from tests import oldest
from tests.s3 import Buckets, serving
from tests.servers import TEMPLATE, copy_template, initialised, memory, share

# The product's settings come from the tests, never from the shell that runs them. At import, so that no module
# under test can have read them before.
for _name in [*os.environ]:
    if _name.startswith(("RELAY_", "NATS_")) or _name in {"DATABASE_URL", "REDIS_URL"}:
        del os.environ[_name]

# The same examples each time, however long each takes: no test depends on chance, or on the load of the machine.
# To try others: pytest --hypothesis-profile default.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")

# A shell that runs the tests in the background, or by nohup, has Ctrl-C ignored, and programs inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests have contexts of their own, beside those of the relay.toml of the checkout.
relay.outbox.declared_contexts = lambda: None

_TIERS = {"unit", "repository", "contract", "integration", "acceptance", "chaos", "migration"}
#: What takes longest begins first, so that no process works alone at the end.
_FIRST = (
    "test_failpoints",
    "test_nemeses",
    "test_demo",
    "test_scheduler_failover",
    "test_tasks",
    "test_dev",
    "test_delivery_faults",
    "test_python_handlers",
    "test_ordered",
    "test_planted_bugs",
    "test_delivery",
    "test_topologies",
    "test_least_privilege",
    "test_first_steps",
)
#: So many lines of each log are shown when a test fails.
_LAST_LINES = 30
_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    if (directory := share()) is not None:
        config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its folder: ``pytest -m unit``. Those of the examples, run beside them, have no tier."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            for tier in _TIERS.intersection(item.path.relative_to(here).parts):
                item.add_marker(tier)
    items.sort(key=_when)


def _when(item: pytest.Item) -> int:
    """Order the files as `_FIRST` does; the others follow as they were."""
    return _FIRST.index(item.path.stem) if item.path.stem in _FIRST else len(_FIRST)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the processes of a failed test said last: their logs are gone with its directory."""
    report = yield
    directory = getattr(item, "funcargs", {}).get("server_directory")
    if report.failed and directory is not None:
        for log in sorted(directory.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()
            report.sections.append((f"end of {log.name}", "\n".join(lines[-_LAST_LINES:])))
    return report


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def server_root() -> Iterator[Path]:
    """A directory for servers. Not pytest's own: as root that one shuts out the account PostgreSQL runs as."""
    root = Path(tempfile.mkdtemp(prefix="jetrelay-tests-", dir=memory()))
    root.chmod(0o711)
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def server_directory(server_root: Path) -> Iterator[Path]:
    """A directory for the servers of one test, not yet made; removed after it, as it may be in memory."""
    directory = server_root / f"test-{next(_numbers)}"
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


# --- shared by the whole session: leave them running ---


@pytest.fixture(scope="session")
def postgres(server_root: Path) -> Iterator[PostgresServer]:
    with initialised(oldest.Postgres(server_root / "postgres")) as server:
        yield server


@pytest.fixture(scope="session")
def nats_server(server_root: Path) -> Iterator[NatsServer]:
    with NatsServer(server_root / "nats") as server:
        yield server


@pytest.fixture(scope="session")
def valkey(server_root: Path) -> Iterator[ValkeyServer]:
    with oldest.Valkey(server_root / "valkey") as server:
        yield server


@pytest.fixture(scope="session")
def buckets() -> Iterator[Buckets]:
    with serving() as buckets:
        yield buckets


@pytest.fixture(scope="session")
def administrator(postgres: PostgresServer) -> Iterator[psycopg.Connection]:
    """Makes and drops databases, so that not each of them costs a connection more."""
    with postgres.connect() as connection:
        yield connection


@pytest.fixture(scope="session")
def database_template(postgres: PostgresServer) -> str:
    """The name of a migrated database of that server, to copy. Nobody may be connected to it meanwhile."""
    return TEMPLATE


@pytest.fixture
def database_url(postgres: PostgresServer, administrator: psycopg.Connection) -> Iterator[str]:
    """A migrated, empty database for this test alone."""
    name = f"test_{next(_numbers)}"
    copy_template(administrator, name)
    yield postgres.url_of(name)
    administrator.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())


# --- one test's own: to be killed, paused, restarted ---


@pytest.fixture
def own_postgres(server_directory: Path) -> Iterator[PostgresServer]:
    with initialised(oldest.Postgres(server_directory / "postgres")) as server:
        yield server


@pytest.fixture
def own_nats(server_directory: Path) -> Iterator[NatsServer]:
    with NatsServer(server_directory / "nats") as server:
        yield server


@pytest.fixture
def own_valkey(server_directory: Path) -> Iterator[ValkeyServer]:
    with oldest.Valkey(server_directory / "valkey") as server:
        yield server
