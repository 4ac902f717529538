"""A program that listens on the subjects of events and answers as if it were a stream."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final

import nats
import nats.errors

from chaos.deployment import LETTERS, PRODUCING, STREAM
from chaos.stage import Stage

#: No stream answers like this: not in form, not with such a sequence, or not to such a subject.
ANSWERS: Final = (
    b"5",
    b"null",
    b'"x"',
    b"{}",
    b"[" * 10_000,
    b"\xff\xfe",
    b'{"error":5}',
    b'{"error":{"code":400,"err_code":10097,"description":"message header size exceeds maximum allowed of 64k"}}',
    b'{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"}}',
    b'{"stream":null,"seq":"abc"}',
    b'{"stream":"\\u0000","seq":5}',
    b'{"stream":"NOBODY","seq":5}',
    b'{"stream":"%b","seq":1}' % LETTERS.encode(),
    b'{"stream":"%b","seq":-5}' % STREAM.encode(),
    b'{"stream":"%b","seq":0}' % STREAM.encode(),
    b'{"stream":"%b","seq":99999999999999999999}' % STREAM.encode(),
)
#: Reply subjects are numbered. To so many after the one that it sees, it answers at once: those answers come
#: before the stream's.
_AHEAD: Final = 20
_LOOK_SECONDS: Final = 0.05
_DRAIN_SECONDS: Final = 5.0


@contextmanager
def foreign_answers(stage: Stage, _target: str) -> Iterator[None]:
    """It takes each answer in turn, for messages that it sees and for those that come next."""
    over, ready = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="chaos-answers") as pool:
        answering = pool.submit(asyncio.run, _answer(stage.rig.nats.url, over, ready))
        try:
            while not ready.wait(_LOOK_SECONDS) and not answering.done():
                pass
            yield
        finally:
            over.set()
            stage.note(f"{answering.result()} answers")


async def _answer(url: str, over: threading.Event, ready: threading.Event) -> int:
    """Answer until it is over; returns how often."""
    client = await nats.connect(url, error_cb=_nothing, max_reconnect_attempts=-1)
    answers, given = itertools.cycle(ANSWERS), 0

    async def reply(message: Any) -> None:
        nonlocal given
        inbox, _, number = message.reply.rpartition(".")
        numbers = range(int(number), int(number) + _AHEAD) if number.isdecimal() else ()
        for reply in (f"{inbox}.{it}" for it in numbers):
            with suppress(nats.errors.Error):
                await client.publish(reply, next(answers))
                given += 1

    try:
        seen = await client.subscribe(f"{PRODUCING}.event.>", cb=reply)
        await client.flush()
        ready.set()
        await asyncio.get_running_loop().run_in_executor(None, over.wait)
        # What it has seen by now is answered and counted, unless another fault has taken NATS away.
        with suppress(nats.errors.Error, OSError):
            await asyncio.wait_for(seen.drain(), _DRAIN_SECONDS)  # type: ignore[no-untyped-call]
    finally:
        with suppress(OSError):
            await client.close()
    return given


async def _nothing(_error: Exception) -> None:
    """A server that is away is another fault's."""
