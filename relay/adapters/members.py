"""Heartbeats: every member of a fleet says in Redis that it is there, and what it does.

Three keys hold the times of the last beats, by the clock of Redis; what each member said; and the times of members
that publish. A beat is one command. Redis may lose all keys at any moment: the next beats write them again.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from relay.adapters.redis_client import reached
from relay.adapters.redis_keys import SURE
from relay.concurrency import end, is_cancelled
from relay.domain.errors import QueueUnreachable
from relay.domain.members import (
    ANY,
    BEAT_INTERVAL_S,
    FORGOTTEN_AFTER_S,
    LOST_AFTER_S,
    Member,
    Seen,
    State,
    handles,
    listener_of,
    read_member,
)

#: The interval while a process starts, in seconds: its supervisor waits for it.
_STARTING_INTERVAL_S: Final = 0.25
#: For how long it is believed that no worker handles a version.
_SURE_FOR_S: Final = 0.25
_BEGAN: Final = time.monotonic()
#: Forgets those that were silent for too long, a few at a time. KEYS: the times, the texts, the times of those
#: that publish. ARGV: the limits of silence in ms, forgotten and lost.
_FORGET: Final = (
    SURE
    + """
local time = redis.call("time")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, id in ipairs(sure("zrangebyscore", KEYS[1], "-inf", now - ARGV[1], "LIMIT", 0, 100)) do
    sure("zrem", KEYS[1], id)
    sure("hdel", KEYS[2], id)
    sure("zrem", KEYS[3], id)
end
"""
)
#: A beat of the future is none of ours, whatever the clocks say: it would never be forgotten.
_WHO: Final = """
return sure("zrangebyscore", KEYS[3], now - ARGV[2], now + ARGV[2])
"""
#: ARGV: the limits, the id, the text, whether it publishes. Returns the members that publish.
_BEAT: Final = f"""{_FORGET}
sure("zadd", KEYS[1], now, ARGV[3])
sure("hset", KEYS[2], ARGV[3], ARGV[4])
if ARGV[5] == "yes" then
    sure("zadd", KEYS[3], now, ARGV[3])
else
    sure("zrem", KEYS[3], ARGV[3])
end
{_WHO}"""
#: How many members are listed, those first that are not lost; of one, and of all, so many bytes.
LISTED: Final = 1_000
_TEXT_BYTES: Final = 16 * 1024
_ALL_BYTES: Final = 4 * 1024**2
#: Returns a text and the milliseconds since its beat, in turn. Anybody may put more, and longer ones, beside ours.
_LIST: Final = f"""{_FORGET}
local members, bytes = {{}}, 0
local beats = {{}}
for _, times in ipairs({{{{now - ARGV[2], now + ARGV[2]}}, {{"-inf", "(" .. now - ARGV[2]}}}}) do
    local left = {LISTED} - #beats / 2
    local found = sure("zrangebyscore", KEYS[1], times[1], times[2], "WITHSCORES", "LIMIT", 0, left)
    for _, it in ipairs(found) do table.insert(beats, it) end
end
for i = 1, #beats, 2 do
    local text = sure("hget", KEYS[2], beats[i])
    if text and #text <= {_TEXT_BYTES} and bytes + #text <= {_ALL_BYTES} then
        bytes = bytes + #text
        table.insert(members, text)
        table.insert(members, now - beats[i + 1])
    end
end
return members
"""


class Members:
    """The members of the fleets that share a namespace of Redis. Others use the same client."""

    def __init__(self, client: Any, namespace: str, *, place: str | None = None) -> None:
        """``place``: this host and its process namespace; "" if processes cannot be told apart."""
        self._client, self._place = client, this_place() if place is None else place
        self._keys = [f"{namespace}:members:beats", f"{namespace}:members", f"{namespace}:members:publishing"]
        self._beat, self._list, self._count = map(client.register_script, (_BEAT, _LIST, _FORGET + _WHO))
        self._limits = [int(FORGOTTEN_AFTER_S * 1000), int(LOST_AFTER_S * 1000)]
        self._publishers: Collection[str] = ()
        self._counted_at: float | None = None
        self._listening: Collection[str] = ()
        self._looked_at: float | None = None
        self._digests: Collection[str] = (ANY,)
        self._asked_at = -float("inf")

    async def beat(self, member: Member) -> None:
        """Say that a member is there. Raises QueueUnreachable."""
        text = json.dumps({**asdict(member), "state": member.state.value})
        args = [*self._limits, member.id, text, "yes" if member.publishes else ""]
        self._note(await reached(self._beat(keys=self._keys, args=args)))

    async def leave(self, member: Member) -> None:
        """Say that a member has ended. Raises QueueUnreachable."""
        beats, texts, publishing = self._keys
        pipeline = self._client.pipeline(transaction=False)
        pipeline.zrem(beats, member.id).hdel(texts, member.id).zrem(publishing, member.id)
        await reached(pipeline.execute())

    async def publishing(self) -> int:
        """How many workers that publish are alive, at least 1; while Redis is away, as many as there were.

        It may be some seconds old. A process that beats does not ask: each beat returns it.
        """
        if self._counted_at is None or time.monotonic() - self._counted_at > 2 * BEAT_INTERVAL_S:
            with suppress(QueueUnreachable):
                self._note(await reached(self._count(keys=self._keys, args=self._limits)))
        return self.last_publishing

    @property
    def last_publishing(self) -> int:
        """The last answer of `publishing`, at least 1."""
        return max(1, len(self._publishers))

    def listens(self, id: str, context: str) -> bool:
        """Whether this member is the one to listen to a context, as of its last beat."""
        return listener_of(context, self._publishers) == id

    async def listening(self, context: str) -> bool:
        """Whether a worker hears the hints of a context. The answer may be some seconds old."""
        if self._looked_at is None or time.monotonic() - self._looked_at > BEAT_INTERVAL_S:
            # Set first, so that callers that come meanwhile do not ask, too.
            self._looked_at = time.monotonic()
            with suppress(QueueUnreachable):
                alive = [it.member for it in await self.all() if it.state is State.WORKING]
                self._listening = {name for member in alive for name in member.listens}
        return context in self._listening

    async def handle(self, names: Sequence[str]) -> bool:
        """Whether a worker that is not forgotten has a function for one of these versions (`handled_name`).

        A yes may be some seconds old, a no a part of a second. While Redis is away the answer is that of before,
        at first yes: a deploy may go on.
        """
        found = self._one_handles(names)
        if time.monotonic() - self._asked_at > (BEAT_INTERVAL_S if found else _SURE_FOR_S):
            # Set first, so that callers that come meanwhile do not ask, too.
            self._asked_at = time.monotonic()
            with suppress(QueueUnreachable):
                self._digests = {it.member.handles for it in await self.all() if it.member.handles}
            found = self._one_handles(names)
        return found

    def _one_handles(self, names: Sequence[str]) -> bool:
        return any(handles(digest, name) for digest in self._digests for name in names)

    def _note(self, publishers: Sequence[str]) -> None:
        self._publishers, self._counted_at = publishers, time.monotonic()

    async def all(self) -> Sequence[Seen]:
        """Members that are not forgotten yet, lost ones too: `LISTED` at most. Raises QueueUnreachable."""
        answer = await reached(self._list(keys=self._keys, args=self._limits))
        seen = []
        for text, silent_ms in zip(answer[::2], answer[1::2], strict=True):
            # A member of another release may write another form. It is left out.
            with suppress(TypeError, ValueError, KeyError):
                seen.append(Seen(member=read_member(json.loads(text)), silent_seconds=max(0, silent_ms) / 1000))
        return sorted(seen, key=lambda it: (it.member.host, it.member.kind, it.member.pid))

    async def releases(self) -> Mapping[str, int]:
        """How many workers run each release; empty while Redis does not answer, or if no worker is there."""
        with suppress(QueueUnreachable):
            working = [it.member for it in await self.all() if it.state is not State.LOST]
            return Counter(it.release_shown for it in working if it.kind == "worker" and it.release_shown)
        return {}

    async def gone(self) -> Sequence[Member]:
        """The members whose processes ran on this host and ended without saying so. Raises QueueUnreachable."""
        here = self._place
        return [
            it.member
            for it in await self.all()
            if it.member.place == here != "" and not process_runs(it.member.pid)
        ]


class Heart:
    """Beats for this process from `start` to `stop`, also during an outage of Redis: each beat is complete."""

    def __init__(
        self, members: Members, describe: Callable[[], Member], *, interval: float = BEAT_INTERVAL_S
    ) -> None:
        self._members, self._describe, self._interval = members, describe, interval
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._now = asyncio.Event()

    async def start(self) -> None:
        """Beat at once, and then in fixed intervals."""
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())

    def tell(self) -> None:
        """Beat at once, because something has changed. May be called in any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._now.set)

    async def stop(self) -> None:
        """Say that this process ends."""
        if self._task is not None:
            await end(self._task)
            with suppress(QueueUnreachable):
                await self._members.leave(self._describe())

    async def _run(self) -> None:
        while not is_cancelled():
            self._now.clear()
            member = self._describe()
            with suppress(QueueUnreachable):
                await self._members.beat(member)
            pause = _STARTING_INTERVAL_S if member.state is State.STARTING else self._interval
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._now.wait()


def this_process(kind: str, id: str, fleet: str | None = None, release: str = "") -> Member:
    """Describe what never changes about this process, and ``up_seconds``."""
    command = multiprocessing.parent_process()
    try:
        own = version("jetrelay")
    except PackageNotFoundError:
        own = ""
    return Member(
        id=id,
        kind=kind,
        host=socket.gethostname(),
        pid=os.getpid(),
        place=this_place(),
        command=None if command is None else command.pid,
        fleet=fleet,
        version=own,
        release=release,
    )


def up_seconds() -> float:
    """For how long this process has been running, about."""
    return round(time.monotonic() - _BEGAN, 1)


def this_place() -> str:
    """This host and its process namespace, because a container may have the name of its host."""
    try:
        return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def process_runs(pid: int) -> bool:
    """Whether there is such a process. A zombie (ended, and not waited for) does not run."""
    try:
        about = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return about.rpartition(")")[2].split()[:1] not in (["Z"], ["X"])
