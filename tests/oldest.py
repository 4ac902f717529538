"""The oldest servers that README names, as Debian 12 installs them: PostgreSQL 15 and Redis 7.

``make test-oldest`` runs the tests that share servers on them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from relay.devstack import PostgresServer, ValkeyServer

_POSTGRES = Path("/usr/lib/postgresql/15/bin")
_REDIS = "redis-server"
#: Whether the tests that share servers are asked to use the oldest ones.
WANTED = os.environ.get("JETRELAY_TEST_SERVERS") == "oldest"


def missing() -> str:
    """What is not installed; empty if nothing is missing."""
    absent = [] if (_POSTGRES / "postgres").exists() else ["PostgreSQL 15 (Debian's postgresql-15)"]
    version = shutil.which(_REDIS) and os.popen(f"{_REDIS} --version").read()
    return " and ".join(absent if version and " v=7." in version else [*absent, "Redis 7 (Debian's redis-server)"])


class OldestPostgres(PostgresServer):
    """PostgreSQL 15. It knows neither the locale provider "builtin" nor ``uuidv7()``."""

    locale_options = ("--locale-provider=libc",)

    def _program(self, name: str) -> Path:
        return _POSTGRES / name


class OldestRedis(ValkeyServer):
    """Redis 7.0."""

    def prepare(self) -> Sequence[str | Path]:
        program = shutil.which(_REDIS)
        assert program, missing()
        return [program, *list(super().prepare())[1:]]


#: What the tests that share servers start.
Postgres = OldestPostgres if WANTED else PostgresServer
Valkey = OldestRedis if WANTED else ValkeyServer
