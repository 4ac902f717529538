"""A PostgreSQL with a replica that can take over, as a high-availability manager arranges them.

While the replica runs, a commit waits for it: so the replica has every confirmed commit. A primary that has lost
its replica goes on alone until the next one follows.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, LiteralString

import psycopg

from relay.devstack import private_files
from relay.devstack.errors import ServerFailed
from relay.devstack.ports import LOOPBACK
from relay.devstack.postgres import PostgresServer

_COPY_SECONDS: Final = 120.0
_JOIN_SECONDS: Final = 60.0
_ALONE: Final = "ALTER SYSTEM SET synchronous_standby_names = ''"
_TOGETHER: Final = "ALTER SYSTEM SET synchronous_standby_names = '*'"


class PostgresMember(PostgresServer):
    """One of two servers. With a ``source`` its data begins as a copy of that server, and follows it."""

    source: PostgresServer | None = None
    _is_copy = False

    def forget(self) -> None:
        """Kill the server; it begins anew at the next start."""
        self.kill()
        self._finished.unlink(missing_ok=True)

    def _initialise(self) -> None:
        self._is_copy = self.source is not None
        if self.source is None:
            super()._initialise()
            return
        self._empty()
        where = f"host={LOOPBACK} port={self.source.port} user=postgres passfile={self._pass_file()}"
        options = ["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-password"]
        copy = self._spawn([self._program("pg_basebackup"), "-D", self._data, "-d", where, *options])
        if copy.wait(_COPY_SECONDS) != 0:
            raise self._failure("could not be copied")

    def _protect(self) -> None:
        # A copy has its source's password. If a promoted copy set it, it would wait for its replica for ever.
        if not self._is_copy:
            super()._protect()

    def _pass_file(self) -> Path:
        """The password in libpq's format, in a file that only the server's account can read."""
        path = self._data.with_name("pass")
        private_files.write(path, f"*:*:*:*:{self.password}")
        if self._account:
            shutil.chown(path, self._account.uid, self._account.gid)
        return path


class PostgresPair:
    """Two servers, of which one is the primary: ask each time. Used from one thread.

    Both have the same databases, role and password.
    """

    def __init__(self, directory: Path) -> None:
        self._members = [PostgresMember(directory / f"postgres-{n}") for n in (1, 2)]

    @property
    def primary(self) -> PostgresMember:
        """The server that takes writes."""
        return self._members[0]

    @property
    def replica(self) -> PostgresMember:
        """The server that follows, or will."""
        return self._members[1]

    @property
    def members(self) -> Sequence[PostgresMember]:
        """Both, the primary first."""
        return tuple(self._members)

    def start(self) -> None:
        """Start the primary, and the replica as a copy of it."""
        self.primary.start()
        self.follow()

    def follow(self) -> None:
        """Start the replica, for the first time, beside a primary that runs."""
        private_files.make_directory(self.replica.directory)
        private_files.write(self.replica.directory / "password", self.primary.password)
        self.join()

    def stop(self) -> None:
        """Stop both, the replica first: the primary would wait for it."""
        for server in reversed(self._members):
            server.stop()

    def fail_over(self) -> None:
        """Make the replica the primary, whatever the old one does. No link may lead to the old one any more.

        Returns when the new primary takes writes, alone. The old one stays as it is until `join`.
        """
        self.replica.source = None
        with self.replica.connect() as connection:
            _tell(connection, _ALONE)
            connection.execute("SELECT pg_promote(true, 60)")
        self._members.reverse()

    def part(self) -> None:
        """Have the primary go on alone: its replica is lost."""
        with self.primary.connect() as connection:
            _tell(connection, _ALONE)

    def join(self) -> None:
        """Make the other server the replica, a new copy; return once commits wait for it."""
        self.replica.forget()
        self.replica.source = self.primary
        self.replica.start()
        with self.primary.connect() as connection:
            self._await_stream(connection)
            _tell(connection, _TOGETHER)

    def _await_stream(self, connection: psycopg.Connection) -> None:
        deadline = time.monotonic() + _JOIN_SECONDS
        while not connection.execute("SELECT FROM pg_stat_replication WHERE state = 'streaming'").rowcount:
            if time.monotonic() > deadline:
                raise ServerFailed(f"the replica does not follow its primary; see {self.replica.log_path}")
            time.sleep(0.05)


def _tell(connection: psycopg.Connection, setting: LiteralString) -> None:
    connection.execute(setting)
    connection.execute("SELECT pg_reload_conf()")
