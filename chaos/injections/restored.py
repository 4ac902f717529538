"""The database of the producer is set back to an earlier state, and an operator decides about what it has lost.

Nobody writes during the copy and the swap, so that the lost events are known exactly. No server is restarted: a
worker that runs sees only that its connections broke.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

import psycopg

from chaos.deployment import PRODUCING, database_url
from chaos.history import SetBack
from chaos.injections import operators
from chaos.injections.still import Named, told
from chaos.stage import Stage
from relay.devstack.errors import DevStackError

#: The links through which anybody reaches the database, or publishes.
LINKS: Final = ("producer-postgres", "worker-postgres", "scheduler-postgres", "worker-nats", "scheduler-nats")
_OLDER, _LOST = f"{PRODUCING}_older", f"{PRODUCING}_lost"
#: Traffic between the copy and the swap, in seconds.
_TAIL_SECONDS: Final = (2.0, 6.0)
_PATIENCE_SECONDS: Final = 30.0
_QUIET_SECONDS: Final = 0.2
#: How often an operator decides, because more events of the lost time may still reach the stream.
_DECISIONS: Final = 5
_NAMED: Final = Named(((frozenset({"PRODUCER_RESTORED"}), "does not know"),))
_IDS: Final = "SELECT event_id::text FROM chaos_business"
_PUBLISHED: Final = "SELECT count(*) FROM outbox_events WHERE published_at IS NOT NULL"
_END: Final = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s"
_BACK: Final = "SELECT setval('outbox_events_seq_seq', greatest(last_value - %s, 1)) FROM outbox_events_seq_seq"


@contextmanager
def adopted(stage: Stage, _target: str) -> Iterator[None]:
    """Set it back; the service stands by the lost events, and adopts them."""
    _set_back(stage, "--adopt")
    yield


@contextmanager
def reported(stage: Stage, _target: str) -> Iterator[None]:
    """Set it back; the service does not stand by the lost events, and reports them."""
    _set_back(stage, "--report")
    yield


@contextmanager
def sequence_back(stage: Stage, _target: str) -> Iterator[None]:
    """The numbers of events step back while events wait, as after a promotion without its sequences."""
    back = stage.random.randint(20, 2_000)
    with psycopg.connect(stage.rig.urls[PRODUCING], connect_timeout=5, autocommit=True) as owner:
        owner.execute(_BACK.encode(), [back])
    stage.note(f"{back} numbers")
    yield


def _set_back(stage: Stage, decision: str) -> None:
    with _nobody_else(stage):
        stage.rig.postgres.drop_database(_OLDER)
        _alone(stage, lambda: stage.rig.postgres.create_database(_OLDER, PRODUCING))
    _let_grow(stage)
    with _nobody_else(stage):
        # Under another name nobody writes to it any more.
        _alone(stage, lambda: _rename(stage, PRODUCING, _LOST))
        lost = _ids(_named(stage, _LOST)) - _ids(_named(stage, _OLDER))
        stage.history.write(SetBack(stage.number, sorted(lost), decision.strip("-")))
        _rename(stage, _OLDER, PRODUCING)
        stage.rig.postgres.drop_database(_LOST)
    stage.note(f"{len(lost)} events")
    told(stage, f"producer_{decision.strip('-')}", _NAMED, lambda: _decide(stage, decision))


def _decide(stage: Stage, decision: str) -> None:
    look = ("reconcile", "--producer", "--context", PRODUCING)
    for _ in range(_DECISIONS):
        said = operators.run(stage, (*look, decision, "--yes", "--note", "chaos"))
        if said == "done" and operators.run(stage, look) == "done":
            stage.note(f"reconcile {decision}: done")
            return
    stage.note(f"reconcile {decision}: {said}")


@contextmanager
def _nobody_else(stage: Stage) -> Iterator[None]:
    """Cut all links, and end the sessions that are left, so that nothing changes meanwhile."""
    with ExitStack() as links:
        for name in LINKS:
            links.callback(stage.rig.links[name].heal)
            stage.rig.links[name].cut()
        _end_sessions(stage)
        yield


def _end_sessions(stage: Stage) -> None:
    with stage.rig.postgres.connect() as server:
        server.execute(_END, [PRODUCING])


def _alone(stage: Stage, work: Callable[[], object]) -> None:
    """Do what takes a database without sessions. The sampler comes back each second."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        _end_sessions(stage)
        try:
            work()
        except psycopg.errors.ObjectInUse as error:
            if time.monotonic() > deadline:
                raise DevStackError(f"{PRODUCING} is never without sessions") from error
        else:
            return


def _rename(stage: Stage, name: str, other: str) -> None:
    with stage.rig.postgres.connect() as server:
        server.execute(f"ALTER DATABASE {name} RENAME TO {other}".encode())


def _let_grow(stage: Stage) -> None:
    """Wait until something was published since the copy."""
    before, deadline = _count(stage), time.monotonic() + _PATIENCE_SECONDS
    stage.over.wait(stage.random.uniform(*_TAIL_SECONDS))
    while _count(stage) == before and time.monotonic() < deadline and not stage.over.is_set():
        stage.over.wait(_QUIET_SECONDS)


def _count(stage: Stage) -> int:
    with suppress(psycopg.Error), psycopg.connect(stage.rig.urls[PRODUCING], connect_timeout=5) as shop:
        [count] = shop.execute(_PUBLISHED.encode()).fetchone() or (0,)
        return int(count)
    return 0


def _ids(url: str) -> set[str]:
    with psycopg.connect(url, connect_timeout=5) as connection:
        return {id for [id] in connection.execute(_IDS.encode())}


def _named(stage: Stage, database: str) -> str:
    return database_url(stage.rig.urls[PRODUCING], database)
