"""PgBouncer in transaction mode in front of a server of a test, where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psycopg

from relay.devstack import processes
from relay.devstack.as_root import server_account
from relay.devstack.ports import LOOPBACK, free_port
from tests.waiting import wait_for

PROGRAM: Final = shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
MISSING: Final = "PgBouncer is not installed"
_CONFIG: Final = """\
[databases]
* = host={host} port={port} user={user} password={password} {query}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 500
{user_line}
"""


class Pooler:
    """Lends the sessions of a server for a transaction each, at most ``size`` for each database.

    ``query``: is run in each new session.
    """

    def __init__(self, directory: Path, url: str, *, size: int, query: str = "") -> None:
        parts, self.port = urlsplit(url), free_port()
        account = server_account()
        directory.mkdir(exist_ok=True)
        self._config = directory / "pgbouncer.ini"
        self._config.write_text(
            _CONFIG.format(
                host=parts.hostname,
                port=parts.port,
                user=parts.username,
                password=parts.password,
                own=self.port,
                size=size,
                query=f"connect_query='{query}'" if query else "",
                user_line="" if account is None else "user = nobody",
            )
        )
        self._log = directory / "pgbouncer.log"
        self._running: subprocess.Popen[bytes] | None = None

    def url(self, address: str) -> str:
        """The address of a database through the pooler."""
        return f"postgresql://anybody@{LOOPBACK}:{self.port}{urlsplit(address).path}"

    def start(self, database: str) -> None:
        """Start it, and wait until a database answers through it."""
        command = [str(PROGRAM), str(self._config)]
        self._running = processes.spawn(command, log=self._log, directory=self._config.parent, environment={})
        wait_for("PgBouncer answers", lambda: _answers(self.url(database)))

    def kill(self) -> None:
        """End it at once, and all connections through it."""
        if self._running is not None:
            processes.kill(self._running.pid)
            self._running.wait()


@contextmanager
def pooled(directory: Path, url: str, *, size: int, query: str = "") -> Iterator[Pooler]:
    """A pooler for the block, in front of the server of a database."""
    pooler = Pooler(directory, url, size=size, query=query)
    pooler.start(url)
    try:
        yield pooler
    finally:
        pooler.kill()


def _answers(url: str) -> bool:
    with suppress(psycopg.OperationalError), psycopg.connect(url, prepare_threshold=None) as connection:
        return connection.execute("SELECT 1").fetchone() == (1,)
    return False
