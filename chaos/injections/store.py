"""A stream that lost acknowledged messages: its store is replaced by a copy made some seconds earlier.

During the swap nobody can publish, so that the lost messages are known exactly.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

from chaos.deployment import STREAM
from chaos.history import Lost
from chaos.rig import Rig
from chaos.stage import Stage
from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.stream_reader import NatsStreamAuditor
from relay.commands.reconcile import Stored
from relay.devstack.errors import DevStackError

T = TypeVar("T")

#: The links through which anybody publishes.
LINKS: Final = ("worker-nats", "scheduler-nats")
#: Traffic between the copy and the loss, in seconds.
_TAIL_SECONDS: Final = (1.0, 4.0)
_PATIENCE_SECONDS: Final = 10.0
_QUIET_SECONDS: Final = 0.2


@contextmanager
def tail_lost(stage: Stage, _target: str) -> Iterator[None]:
    """Put back the messages but not the state of the consumers: a disk that lost its last writes."""
    _lose(stage, Path("msgs"))
    yield


@contextmanager
def stream_restored(stage: Stage, _target: str) -> Iterator[None]:
    """Put back messages and consumers: a backup was restored."""
    _lose(stage, Path())
    yield


def last_sequence(rig: Rig) -> int:
    """Return the sequence number of the newest message of the stream."""
    return _ask(rig, _last)


def _lose(stage: Stage, part: Path) -> None:
    rig = stage.rig
    with TemporaryDirectory(prefix="older-", dir=rig.directory) as folder:
        before = last_sequence(rig)
        copy = _copied(rig, part, Path(folder) / "store")
        _let_grow(stage)
        try:
            for name in LINKS:
                rig.links[name].cut()
            tail = _quiet_tail(rig, before + 1)
            rig.nats.stop()
            try:
                _swap(rig, part, copy)
            finally:
                rig.nats.start()
            _record(stage, tail, last_sequence(rig))
        finally:
            for name in LINKS:
                rig.links[name].heal()


def _let_grow(stage: Stage) -> None:
    """Wait until there is a tail to lose: some seconds of traffic, with one message at least."""
    last, deadline = last_sequence(stage.rig), time.monotonic() + _PATIENCE_SECONDS
    stage.over.wait(stage.random.uniform(*_TAIL_SECONDS))
    while last_sequence(stage.rig) == last and time.monotonic() < deadline:
        stage.over.wait(_QUIET_SECONDS)


def _record(stage: Stage, tail: Sequence[Stored], last: int) -> None:
    ids = [str(message.event_id) for message in tail if message.seq > last and message.event_id is not None]
    stage.note(f"{len(ids)} events after {last}")
    stage.history.write(Lost(stage.number, ids))


def _store(rig: Rig) -> Path:
    """Return where nats-server keeps the stream."""
    found = list((rig.nats.directory / "jetstream").glob(f"jetstream/*/streams/{STREAM}"))
    if len(found) != 1:
        raise DevStackError(f"the store of {STREAM} is not where it was expected, below {rig.nats.directory}")
    return found[0]


def _copied(rig: Rig, part: Path, copy: Path) -> Path:
    """Copy a part of the store while the server stands still, as a snapshot of its disk would."""
    rig.nats.pause()
    try:
        shutil.copytree(_store(rig) / part, copy)
    finally:
        rig.nats.resume()
    return copy


def _swap(rig: Rig, part: Path, copy: Path) -> None:
    place = _store(rig) / part
    shutil.rmtree(place)
    shutil.copytree(copy, place)


def _quiet_tail(rig: Rig, first: int) -> Sequence[Stored]:
    """Read what the stream holds from ``first`` on, once nothing is added any more."""
    last = -1
    while last != (last := last_sequence(rig)):
        time.sleep(_QUIET_SECONDS)
    return _ask(rig, lambda auditor: auditor.stored(STREAM, first, last)) if last >= first else []


async def _last(auditor: NatsStreamAuditor) -> int:
    state = await auditor.state(STREAM)
    if state is None:
        raise DevStackError(f"the stream {STREAM} is gone")
    return state.last_seq


def _ask(rig: Rig, use: Callable[[NatsStreamAuditor], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        connection = NatsConnection(rig.nats.url, name="chaos")
        try:
            return await use(NatsStreamAuditor(connection))
        finally:
            await connection.close()

    return asyncio.run(run())
