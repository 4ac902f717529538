"""What people do while a system runs: commands of theirs, upkeep, bursts of work, and a handler that hangs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import psycopg

from relay.adapters.postgres.migrations import upgrade
from relay.chaos.deployment import CONSUMING, PRODUCING
from relay.chaos.history import Operated, now
from relay.chaos.service import HANGING
from relay.chaos.stage import Stage
from relay.domain.errors import RelayError

_RELAY: Final = (sys.executable, "-c", "from relay.cli import main; main()")
_NOTE: Final = ("--note", "chaos", "--yes")
_SECONDS: Final = 60.0
_FEW: Final = 5
_LARGE: Final = (30, 90)
HANGING_MESSAGES: Final = 60
_PUBLISHED: Final = """
SELECT id::text, id::text FROM outbox_events
WHERE published_at > now() - interval '30 s' ORDER BY random() LIMIT %s
"""
_DEAD: Final = """
SELECT id::text, message_id::text FROM dead_letters WHERE status = 'open' ORDER BY random() LIMIT %s
"""
_HOLD: Final = "SELECT (SELECT count(*) FROM outbox_events), (SELECT count(*) FROM inbox_messages)"
_UPKEEP: Final = ("REINDEX TABLE CONCURRENTLY", "VACUUM")


# --- commands -----------------------------------------------------------------------------------


def _outbox_retry(_stage: Stage) -> Sequence[str]:
    return ("outbox", "retry", "--all", "--context", PRODUCING, *_NOTE)


def _outbox_replay(stage: Stage) -> Sequence[str]:
    ids = _chosen(stage, "replay", PRODUCING, _PUBLISHED)
    return ("outbox", "replay", *ids, "--context", PRODUCING, *_NOTE) if ids else ()


def _dlq_requeue(stage: Stage) -> Sequence[str]:
    ids = _chosen(stage, "requeue", CONSUMING, _DEAD)
    return ("dlq", "requeue", *ids, "--context", CONSUMING, *_NOTE) if ids else ()


def _dlq_discard(stage: Stage) -> Sequence[str]:
    ids = _chosen(stage, "discard", CONSUMING, _DEAD)
    return ("dlq", "discard", *ids, "--context", CONSUMING, *_NOTE) if ids else ()


def _parked_release(_stage: Stage) -> Sequence[str]:
    return ("parked", "release", "--all", "--context", CONSUMING, *_NOTE)


def _tasks_retry(_stage: Stage) -> Sequence[str]:
    return ("tasks", "retry", "--all", "--context", PRODUCING, *_NOTE)


def _upgrade(_stage: Stage) -> Sequence[str]:
    return ("db", "upgrade")


COMMANDS: Final[tuple[Callable[[Stage], Sequence[str]], ...]] = (
    _outbox_retry,
    _outbox_replay,
    _dlq_requeue,
    _dlq_discard,
    _parked_release,
    _tasks_retry,
    _upgrade,
)


@contextmanager
def commanded(stage: Stage, _target: str) -> Iterator[None]:
    """Two of the operators' commands, whatever else is going on. One that fails says so, and changes nothing."""
    for choose in stage.random.sample(COMMANDS, 2):
        try:
            words = choose(stage)
        except psycopg.Error as error:
            stage.note(f"{choose.__name__.strip('_')}: {type(error).__name__}")
            continue
        if words:
            stage.note(f"{' '.join(words[:2])}: {run(stage, words)}")
    yield


def run(stage: Stage, words: Sequence[str]) -> str:
    """Run a command of relay on the servers, past the links; says how it ended."""
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            [*_RELAY, *words],
            env=dict(stage.rig.environment),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {_SECONDS:.0f} s"
    return "done" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1][:80]


def _chosen(stage: Stage, action: str, context: str, statement: str) -> Sequence[str]:
    """Choose a few rows for an action, and record it before anything can come of it."""
    with psycopg.connect(stage.rig.urls[context], connect_timeout=5) as connection:
        rows = connection.execute(statement.encode(), [_FEW]).fetchall()
    if rows and action != "discard":
        stage.history.write(Operated(stage.number, action, [message for _, message in rows], now()))
    return [id for id, _ in rows]


# --- upkeep -------------------------------------------------------------------------------------


@contextmanager
def kept_up(stage: Stage, _target: str) -> Iterator[None]:
    """A long reader, beside it `relay db upgrade`; after it, indexes are built anew and tables vacuumed."""
    urls = [stage.rig.urls[context] for context in (PRODUCING, CONSUMING)]
    for url in urls:
        with psycopg.connect(url, connect_timeout=5) as reader:
            reader.execute(_HOLD)
            began = time.monotonic()
            try:
                upgrade(url)
            except RelayError as error:
                stage.note(f"upgrade: {error.code}")
            stage.note(f"upgrade beside a reader: {time.monotonic() - began:.1f} s")
            if url is urls[-1]:
                yield
    for url, table in zip(urls, ("outbox_events", "inbox_messages"), strict=True):
        with psycopg.connect(url, connect_timeout=5, autocommit=True) as keeper:
            keeper.execute("SET statement_timeout = '30s'")
            try:
                for words in _UPKEEP:
                    keeper.execute(f"{words} {table}".encode())
            except psycopg.Error as error:
                stage.note(f"{table}: {type(error).__name__}")


# --- work ---------------------------------------------------------------------------------------


@contextmanager
def large_payloads(stage: Stage, _target: str) -> Iterator[None]:
    """Dozens of events of 100 to 900 KB in one transaction."""
    count = stage.random.randint(*_LARGE)
    stage.note(f"{count} events")
    stage.commit("large", count)
    yield


@contextmanager
def poisoned(stage: Stage, _target: str) -> Iterator[None]:
    """Rows that can never be published, among those that can."""
    stage.commit("bad", _FEW)
    yield


@contextmanager
def from_the_future(stage: Stage, _target: str) -> Iterator[None]:
    """Events that are minutes ahead of the database's clock, as if that had been set back."""
    stage.commit("future", _FEW)
    yield


@contextmanager
def hanging(stage: Stage, _target: str) -> Iterator[None]:
    """The slow handler answers nobody, and more messages than there are threads want it."""
    flag = stage.rig.history / HANGING
    flag.touch()
    try:
        stage.commit("slow", HANGING_MESSAGES)
        yield
    finally:
        flag.unlink()
