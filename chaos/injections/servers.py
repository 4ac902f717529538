"""Faults of the servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import redis

from chaos.stage import Heal, Stage, lasting
from relay.devstack import Server

_TERMINATE = """\
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


def _server(stage: Stage, target: str) -> Server:
    return next(server for server in stage.rig.stack.servers if server.name == target)


@lasting
def killed(stage: Stage, target: str) -> Heal:
    """SIGKILL to all its processes; started again after a while."""
    server = _server(stage, target)
    server.kill()
    return server.start


@lasting
def stopped(stage: Stage, target: str) -> Heal:
    """A clean stop, a later start."""
    server = _server(stage, target)
    server.stop()
    return server.start


@contextmanager
def frozen(stage: Stage, target: str) -> Iterator[None]:
    """SIGSTOP to all its processes: connections stay open and nothing answers."""
    server = _server(stage, target)
    try:
        server.pause()
        yield
    finally:
        server.resume()


@lasting
def postgres_immediate(stage: Stage, _target: str) -> Heal:
    """A stop without a checkpoint: every connection is lost, and the start recovers from the log."""
    stage.rig.postgres.stop("immediate")
    return stage.rig.postgres.start


@contextmanager
def backends_terminated(stage: Stage, _target: str) -> Iterator[None]:
    """Every connection is ended by an administrator, whatever it is doing."""
    with psycopg.connect(stage.rig.postgres.url, autocommit=True) as connection:
        row = connection.execute(_TERMINATE).fetchone()
    stage.note(f"{row[0] if row else 0} connections")
    yield


@contextmanager
def flushed(stage: Stage, _target: str) -> Iterator[None]:
    """FLUSHALL: every queued message and every gate is gone."""
    with redis.Redis.from_url(stage.rig.valkey.url) as client:
        stage.note(f"{client.dbsize()} keys")
        client.flushall()
    yield


@contextmanager
def disk_full(stage: Stage, target: str) -> Iterator[None]:
    """No room left where the server keeps its data. An operator then makes room, and starts it again."""
    server, disk = _server(stage, target), stage.rig.disks[target]
    disk.fill()
    try:
        yield
    finally:
        disk.free()
        stage.note("it had ended" if not server.running else "it was still there")
        server.restart()
