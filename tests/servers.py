"""What makes servers cheap that only tests use: files in memory, and clusters that are copied, not made.

Making a cluster (initdb) and its tables (all migrations) takes seconds. One is made for each run of pytest, with
a migrated database `TEMPLATE` in it. Every PostgreSQL server of a test begins as a copy of that cluster.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import psutil
import psycopg
from filelock import FileLock

from relay.devstack import PostgresServer
from tests import oldest

#: The migrated database of each copied cluster. Nobody may be connected to it while it is copied.
TEMPLATE = "relay_template"
_PLENTY_BYTES = 6 * 1024**3
#: The variable that names the directory which the processes of a run share.
_SHARED = "JETRELAY_TESTS_SHARED"


def memory() -> Path | None:
    """Where files lie in memory, if there is plenty of it.

    What the servers of tests write is thrown away, and no test cuts the power: a killed process loses no file.
    """
    place = Path("/dev/shm")
    if not os.access(place, os.W_OK):
        return None
    free = min(shutil.disk_usage(place).free, psutil.virtual_memory().available)
    return place if free > _PLENTY_BYTES else None


def share() -> Path | None:
    """Make the directory that the processes of one run of pytest share, unless another of them has made it."""
    if _SHARED in os.environ:
        return None
    # Not pytest's own directory: as root that one shuts out the account PostgreSQL runs as.
    directory = Path(tempfile.mkdtemp(prefix="jetrelay-tests-", dir=memory()))
    directory.chmod(0o711)
    os.environ[_SHARED] = str(directory)
    return directory


@cache
def cluster() -> Path:
    """The directory of a PostgreSQL server that was initialised, has its tables, and has ended."""
    from relay.adapters.postgres.migrations import upgrade  # loads Alembic, which unit tests do without

    directory = Path(os.environ[_SHARED])
    finished = directory / "finished"
    with FileLock(directory / "lock"):
        if not finished.exists():
            with oldest.Postgres(directory / "cluster") as server:
                url = server.create_database(TEMPLATE)
                upgrade(url)
                # Who connects first after a change of tables leaves a file from which the next ones learn of the
                # catalogue.
                psycopg.connect(url).close()
            finished.touch()
    return directory / "cluster"


def initialised(server: PostgresServer) -> PostgresServer:
    """Have a server that was never started begin with a copy of the cluster of this run."""
    made = cluster()
    if not (made / "elsewhere").exists():  # else the data have to lie elsewhere: let it find the place itself
        server.directory.mkdir(parents=True)
        files = [made / name for name in ("password", "data", "initdb.finished")]
        subprocess.run(["cp", "--archive", *files, server.directory], check=True)
    return server


def migrated(server: PostgresServer, name: str) -> str:
    """Create a database with all tables on a server that began as a copy; returns its address."""
    with server.connect() as connection:
        copy_template(connection, name)
    return server.url_of(name)


def copy_template(connection: psycopg.Connection, name: str) -> None:
    """Create a database with all tables. Files in memory are copied sooner than they are logged.

    Its owner may insert rows of any state, as a test wants them.
    """
    connection.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY".encode())
    connection.execute(f"ALTER DATABASE {name} SET relay.restoring = on".encode())
