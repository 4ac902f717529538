"""What people do while a system runs: commands, upkeep, bursts of work, and a handler that hangs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

import psycopg

from chaos.cron_jobs import ASKED
from chaos.deployment import CONSUMING, NEXT_RELEASE, PRODUCING
from chaos.history import BEHIND, CRASHED, QUICK, Operated, now
from chaos.service import AWAY, HANGING
from chaos.stage import Stage
from relay.adapters.postgres.migrations import status, upgrade
from relay.domain.errors import RelayError

_RELAY: Final = (sys.executable, "-c", "from relay.cli import main; main()")
_NOTE: Final = ("--note", "chaos", "--yes")
_SECONDS: Final = 60.0
_FEW: Final = 5
_LARGE: Final = (30, 90)
_LOOK_SECONDS: Final = 0.2
#: With so few that wait, the fleet has caught up.
_HARDLY_ANY: Final = 30
#: What waits for less than five seconds is on its way, however busy the machine is.
_UNPUBLISHED: Final = """
SELECT count(*) FROM outbox_events
WHERE published_at IS NULL AND dead_at IS NULL AND occurred_at < now() - interval '5 s'
"""
#: Ordered messages are left out: they may wait for a head that fails on purpose.
_UNTRIED: Final = """
SELECT count(*) FROM inbox_messages
WHERE subscription IN ('http', 'python') AND processed_at IS NULL AND dead_lettered_at IS NULL AND attempts = 0
  AND received_at < now() - interval '5 s'
"""
_PUBLISHED: Final = """
SELECT id::text, id::text FROM outbox_events
WHERE published_at > now() - interval '30 s' ORDER BY random() LIMIT %s
"""
_OPEN: Final = """
SELECT id::text, coalesce(originals ->> 'id', message_id::text)
FROM dead_letters WHERE status = 'open' ORDER BY random() LIMIT %s
"""
_DEAD: Final = """
SELECT id::text, coalesce(originals ->> 'id', message_id::text) FROM dead_letters
WHERE status = 'open' AND class <> 'unconfirmed' AND subscription <> 'dead_letters' ORDER BY random() LIMIT %s
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
    ids = _chosen(stage, "discard", CONSUMING, _OPEN)
    return ("dlq", "discard", *ids, "--context", CONSUMING, *_NOTE) if ids else ()


def _schedule_run(_stage: Stage) -> Sequence[str]:
    return ("schedule", "run", ASKED, "--context", CONSUMING, "--note", "chaos")


def _upgrade(_stage: Stage) -> Sequence[str]:
    return ("db", "upgrade")


COMMANDS: Final[tuple[Callable[[Stage], Sequence[str]], ...]] = (
    _outbox_retry,
    _outbox_replay,
    _dlq_requeue,
    _dlq_discard,
    _schedule_run,
    _upgrade,
)


@contextmanager
def commanded(stage: Stage, _target: str) -> Iterator[None]:
    """Run two operator commands during other faults. A command that fails says so and changes nothing."""
    for choose in stage.random.sample(COMMANDS, 2):
        try:
            words = choose(stage)
        except psycopg.Error as error:
            stage.note(f"{choose.__name__.strip('_')}: {type(error).__name__}")
            continue
        if words:
            stage.note(f"{' '.join(words[:2])}: {run(stage, words)}")
    yield


def run(stage: Stage, words: Sequence[str], seconds: float = _SECONDS) -> str:
    """Run a command of relay on the servers, past the links, for so long at most; says how it ended."""
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            [*_RELAY, *words],
            env=dict(stage.rig.environment),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {seconds:.0f} s"
    if done.returncode == 0:
        return "done"
    last = (done.stderr.strip().splitlines() or ["failed"])[-1][:80]
    return f"{CRASHED} {last}" if "Traceback" in done.stderr else last


def _chosen(stage: Stage, action: str, context: str, statement: str) -> Sequence[str]:
    """Choose a few rows for an action, and record the action before it can take effect."""
    with psycopg.connect(stage.rig.urls[context], connect_timeout=5) as connection:
        rows = connection.execute(statement.encode(), [_FEW]).fetchall()
    if rows and action != "discard":
        stage.history.write(Operated(stage.number, action, [message for _, message in rows], now()))
    return [id for id, _ in rows]


# --- upkeep -------------------------------------------------------------------------------------


@contextmanager
def kept_up(stage: Stage, _target: str) -> Iterator[None]:
    """Upgrade the tables to a made-up next release during long reads; then rebuild indexes and vacuum tables.

    The upgrade ends after the readers. A second one finds nothing to do.
    """
    urls = [stage.rig.urls[context] for context in (PRODUCING, CONSUMING)]
    with ThreadPoolExecutor(len(urls), thread_name_prefix="chaos-upgrade") as pool:
        with ExitStack() as readers:
            for url in urls:
                readers.enter_context(psycopg.connect(url, connect_timeout=5)).execute(_HOLD)
            upgrades = [pool.submit(_upgraded, url) for url in urls]
            yield
        for future in upgrades:
            stage.note(future.result())
    for url, table in zip(urls, ("outbox_events", "inbox_messages"), strict=True):
        with psycopg.connect(url, connect_timeout=5, autocommit=True) as keeper:
            keeper.execute("SET statement_timeout = '30s'")
            try:
                for words in _UPKEEP:
                    keeper.execute(f"{words} {table}".encode())
            except psycopg.Error as error:
                stage.note(f"{table}: {type(error).__name__}")


def _upgraded(url: str) -> str:
    began = time.monotonic()
    try:
        before = status(url).current
        upgrade(url, patience=_SECONDS, further=NEXT_RELEASE)
        after = status(url).current
    except RelayError as error:
        return f"upgrade: {error.code}"
    ways = after if before == after else f"{before} to {after}"
    return f"upgrade: {ways}, {time.monotonic() - began:.1f} s"


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


def await_caught_up(stage: Stage) -> None:
    """Wait until the fleet has handled what earlier faults left behind: the hang does not cause that wait."""
    deadline = time.monotonic() + stage.catch_up
    while not stage.over.is_set() and time.monotonic() < deadline:
        with suppress(psycopg.Error):
            behind = _behind(stage, PRODUCING, _UNPUBLISHED) + _behind(stage, CONSUMING, _UNTRIED)
            if behind + _unfetched(stage) <= _HARDLY_ANY:
                return
        stage.over.wait(_LOOK_SECONDS)
    stage.note(BEHIND)


def _unfetched(stage: Stage) -> int:
    """How many messages of quick handlers wait in the stream: what a fault has lost on its way fills a window."""
    _, pending = stage.rig.fetched()
    return _HARDLY_ANY + 1 if pending is None else sum(pending.get(source, 0) for source in QUICK)


def _behind(stage: Stage, context: str, statement: str) -> int:
    with psycopg.connect(stage.rig.urls[context], connect_timeout=5) as connection:
        [count] = connection.execute(statement.encode()).fetchone() or (0,)
        return int(count)


@contextmanager
def away(stage: Stage, _target: str) -> Iterator[None]:
    """A handler answers 503 to every call, beside others that do well. What it does not handle is not lost."""
    flag = stage.rig.history / AWAY
    flag.touch()
    try:
        yield
    finally:
        flag.unlink()


@contextmanager
def failing(stage: Stage, _target: str) -> Iterator[None]:
    """More messages come than JetStream's window has places, and the service always fails for them."""
    stage.commit("failing", stage.failing)
    yield


@contextmanager
def hanging(stage: Stage, _target: str) -> Iterator[None]:
    """The slow handler answers no call, while more messages than threads wait for it."""
    flag = stage.rig.history / HANGING
    flag.touch()
    try:
        stage.commit("slow", stage.hanging)
        yield
    finally:
        flag.unlink()
