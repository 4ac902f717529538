"""Backlogs that something holds still, and what `relay doctor` says of it meanwhile and afterwards.

Each cause is injected by itself. It is healed once the findings name it, or when the time for that is over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, TypeAlias

import psycopg
from nats.js import JetStreamContext

from chaos.deployment import CONSUMING, FLEET, PRODUCING, STREAM, TWIN, TWIN_STREAM
from chaos.history import Diagnosed, Source
from chaos.injections import operators
from chaos.levers import STALL
from chaos.stage import Injection, Stage
from relay.adapters.jetstream.connection import connect_once
from relay.devstack.errors import DevStackError
from relay.domain.findings import Finding, Severity
from relay.ops.queries import Diagnose, queries

#: How long the findings may take to name a cause, and to forget one that is healed, in seconds.
NAMED_WITHIN: Final = 45.0
GONE_WITHIN: Final = 60.0
_LOOK_SECONDS: Final = 0.5
#: A loop that stands still for so long, in seconds, does not come back by itself.
_FOR_GOOD: Final = 600.0
_SUCCESSOR_SECONDS: Final = 30.0
_CONSUMER: Final = f"{CONSUMING}__{Source.PYTHON}"
_TWIN: Final = f"{CONSUMING}__{TWIN}"
#: How long the reader of a sealed stream may take for the rest, in seconds.
_READ_WITHIN: Final = 60.0
#: An event that nobody reads, of the consuming context.
_EVENT: Final = """
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
VALUES (gen_random_uuid(), 'probe', gen_random_uuid()::text, 'probe', '{}')
"""

#: Codes of findings, of which one must be there, and what its text must say.
Telling: TypeAlias = tuple[frozenset[str], str]
_NOT_PUBLISHED: Final = frozenset({"OUTBOX_STALLED", "EVENTS_REFUSED"})


@dataclass(frozen=True, slots=True)
class Named:
    """What must be told of a cause: each of these."""

    tellings: tuple[Telling, ...]

    def among(self, found: Mapping[str, str]) -> bool:
        """Whether errors, as texts by code, tell all of it."""
        return all(
            any(says in text for code, text in found.items() if code in codes) for codes, says in self.tellings
        )

    def still_in(self, found: Mapping[str, str]) -> bool:
        """Whether any of it is told."""
        return any(code in codes and says in found[code] for codes, says in self.tellings for code in found)


def errors(stage: Stage) -> Mapping[str, str]:
    """The texts of all errors that `relay doctor` finds now, by code, as the fleet's role sees them."""
    bus = queries(stage.rig.fleet_settings)
    texts: dict[str, str] = {}
    found: list[Finding] = [*asyncio.run(bus.ask_async(Diagnose(close=True))).unwrap().findings]
    for it in found:
        if it.severity is Severity.ERROR:
            texts[it.code] = f"{texts.get(it.code, '')}{it.subject}: {it.text}\n"
    return texts


def told(stage: Stage, cause: str, named: Named, heal: Callable[[], object]) -> None:
    """Wait until the errors name the cause, heal it, wait until they do not, and record how long both took."""
    began, last = time.monotonic(), ""
    seconds: float | None = None
    while seconds is None and time.monotonic() - began < NAMED_WITHIN and not stage.over.is_set():
        found = errors(stage)
        last = ", ".join(found)
        seconds = time.monotonic() - began if named.among(found) else None
        stage.over.wait(_LOOK_SECONDS)
    cut_short = seconds is None and time.monotonic() - began < NAMED_WITHIN
    heal()
    if cut_short:
        stage.note("the run ended before the cause was named")
        return
    healed = time.monotonic()
    gone: float | None = None
    while gone is None and time.monotonic() - healed < GONE_WITHIN:
        gone = None if named.still_in(errors(stage)) else time.monotonic() - healed
    stage.history.write(Diagnosed(stage.number, cause, seconds, gone, last))
    stage.note(f"named after {_shown(seconds)}, gone after {_shown(gone)}")


def _shown(seconds: float | None) -> str:
    return "too long" if seconds is None else f"{seconds:.0f} s"


#: Holds something still at a target while it is entered.
_Hold: TypeAlias = Callable[[Stage, str], AbstractContextManager[None]]


def _naming(*tellings: Telling) -> Callable[[_Hold], Injection]:
    """Make an injection of what holds a backlog still, which lasts until it is named."""

    def injection(hold: _Hold) -> Injection:
        @contextmanager
        @wraps(hold)
        def inject(stage: Stage, target: str) -> Iterator[None]:
            with ExitStack() as held:
                held.enter_context(hold(stage, target))
                told(stage, hold.__name__, Named(tellings), held.close)
            yield

        return inject

    return injection


def _one(code: str, says: str = "") -> Telling:
    return frozenset({code}), says


# --- the stream and its consumers ---


@_naming(_one("STREAM_REFUSES", "is full"), (_NOT_PUBLISHED, ""))
@contextmanager
def stream_full(stage: Stage, _target: str) -> Iterator[None]:
    """The stream has as many messages as it may have."""
    most = _of_stream(stage, None)
    try:
        yield
    finally:
        _of_stream(stage, most)


def _of_stream(stage: Stage, most: int | None) -> int:
    """Set how many messages the stream may have; None: as many as it has. Returns how many that was before."""

    async def change(js: JetStreamContext) -> int:
        info = await js.stream_info(STREAM)
        before = info.config.max_msgs
        info.config.max_msgs = info.state.messages if most is None else most
        await js.update_stream(info.config)
        return -1 if before is None else before

    return int(_jetstream(stage, change))


@_naming(_one("STREAM_REFUSES", "is sealed"), (_NOT_PUBLISHED, ""))
@contextmanager
def stream_sealed(stage: Stage, _target: str) -> Iterator[None]:
    """Somebody has sealed a stream, for which an event waits. The stream is read to its end and made anew."""

    async def seal(js: JetStreamContext) -> None:
        info = await js.stream_info(TWIN_STREAM)
        info.config.sealed = True
        await js.update_stream(info.config)

    async def delete(js: JetStreamContext) -> None:
        deadline = time.monotonic() + _READ_WITHIN
        while (info := await js.consumer_info(TWIN_STREAM, _TWIN)).num_pending or info.num_ack_pending:
            if time.monotonic() > deadline:
                raise DevStackError(f"{_TWIN} does not read {TWIN_STREAM} to its end")
            await asyncio.sleep(_LOOK_SECONDS)
        await js.delete_stream(TWIN_STREAM)

    _jetstream(stage, seal)
    try:
        with psycopg.connect(stage.rig.urls[CONSUMING], connect_timeout=5) as sea:
            sea.execute(_EVENT.encode())
        yield
    finally:
        _jetstream(stage, delete)
        stage.note(f"streams ensure: {operators.run(stage, ('streams', 'ensure'))}")


@_naming(_one("CONSUMER_MISSING", "does not exist"))
@contextmanager
def consumer_deleted(stage: Stage, _target: str) -> Iterator[None]:
    """Somebody has deleted the consumer of a subscription."""
    _jetstream(stage, lambda js: js.delete_consumer(STREAM, _CONSUMER))
    try:
        yield
    finally:
        stage.note(f"streams ensure: {operators.run(stage, ('streams', 'ensure'))}")


@_naming(_one("CONSUMER_PAUSED", "is paused"))
@contextmanager
def consumer_paused(stage: Stage, _target: str) -> Iterator[None]:
    """Somebody has paused the consumer of a subscription. It may go on to retry what came before."""
    _pause(stage, b'{"pause_until": "2099-01-01T00:00:00Z"}')
    try:
        yield
    finally:
        _pause(stage, b"{}")


def _pause(stage: Stage, request: bytes) -> None:
    async def ask(js: JetStreamContext) -> None:
        subject = f"$JS.API.CONSUMER.PAUSE.{STREAM}.{_CONSUMER}"
        answer = await js._nc.request(subject, request)  # noqa: SLF001 - the library has no words for it
        if b'"error"' in answer.data:
            raise DevStackError(f"the consumer was not paused: {answer.data[:200]!r}")

    _jetstream(stage, ask)


def _jetstream(stage: Stage, use: Callable[[JetStreamContext], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with connect_once(stage.rig.addresses()["nats"]) as js:
            return await use(js)

    return asyncio.run(run())


# --- the database ---


@_naming(_one("RIGHTS_MISSING", "outbox_events"), (_NOT_PUBLISHED, ""))
@contextmanager
def right_revoked(stage: Stage, _target: str) -> Iterator[None]:
    """Somebody has taken a right from the role of the fleet."""
    with psycopg.connect(stage.rig.urls[PRODUCING], connect_timeout=5, autocommit=True) as owner:
        owner.execute(f"REVOKE UPDATE ON outbox_events FROM {FLEET}".encode())
    try:
        yield
    finally:
        with psycopg.connect(stage.rig.urls[PRODUCING], connect_timeout=5, autocommit=True) as owner:
            owner.execute(f"GRANT UPDATE ON outbox_events TO {FLEET}".encode())


@_naming(_one("TABLES_LOCKED", "chaos-lock"))
@contextmanager
def table_locked(stage: Stage, _target: str) -> Iterator[None]:
    """A program has locked a table and does nothing more."""
    context, table = stage.random.choice([(PRODUCING, "outbox_events"), (CONSUMING, "inbox_messages")])
    stage.note(table)
    url = stage.rig.urls[context]
    with psycopg.connect(url, connect_timeout=5, application_name="chaos-lock") as other:
        other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        yield


# --- processes ---


@_naming(_one("MEMBER_SILENT", "its event loop hangs"))
@contextmanager
def loop_dead(stage: Stage, target: str) -> Iterator[None]:
    """The event loop of a worker stands still for good. The remedy is to end it."""
    process, lever = stage.rig.processes[target], stage.rig.levers(target) / STALL
    starts = process.starts
    draft = lever.with_suffix(".draft")
    draft.write_text(repr(_FOR_GOOD))
    draft.replace(lever)
    try:
        yield
    finally:
        lever.unlink(missing_ok=True)
        process.kill()
        process.await_successor(starts, _SUCCESSOR_SECONDS)


@_naming(_one("MEMBER_SILENT"), (_NOT_PUBLISHED, ""))
@contextmanager
def workers_stopped(stage: Stage, _target: str) -> Iterator[None]:
    """Every worker is frozen."""
    with _frozen(stage, "worker"):
        yield


@_naming(_one("SCHEDULER_SILENT"))
@contextmanager
def schedulers_stopped(stage: Stage, _target: str) -> Iterator[None]:
    """Every scheduler is frozen."""
    with _frozen(stage, "scheduler"):
        yield


@contextmanager
def _frozen(stage: Stage, role: str) -> Iterator[None]:
    processes = [it for it in stage.rig.of_role(role) if it.wanted]
    try:
        for it in processes:
            it.freeze()
        yield
    finally:
        for it in processes:
            it.thaw()
