"""What makes servers cheap that only tests use: files in memory, and clusters that need no initdb."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import psutil

from relay.devstack import PostgresServer

_PLENTY_BYTES = 6 * 1024**3


def memory() -> Path | None:
    """Where files lie in memory, if there is plenty of it.

    What the servers of tests write is thrown away, and no test cuts the power: a killed process loses no file.
    """
    place = Path("/dev/shm")
    if not os.access(place, os.W_OK):
        return None
    free = min(shutil.disk_usage(place).free, psutil.virtual_memory().available)
    return place if free > _PLENTY_BYTES else None


def initialised(server: PostgresServer, cluster: Path) -> PostgresServer:
    """Have a server that was never started begin with a copy of that cluster's data and password."""
    if not (cluster / "elsewhere").exists():  # else the data have to lie elsewhere: let it find the place itself
        server.directory.mkdir(parents=True)
        files = [cluster / name for name in ("password", "data", "initdb.finished")]
        subprocess.run(["cp", "--archive", *files, server.directory], check=True)
    return server
