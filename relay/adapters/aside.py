"""Fetching from a queue in Redis so that a share with all it can hold does not keep the others waiting behind it.

What a worker has no room for it puts aside, into a list for each share, and so sees what is behind. Whoever has
room for the share takes from that list first. It is one queue still: all that waits in it comes in order within
its share, and what was put aside by a worker that is gone is there for the others.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

#: Fetches messages: first of those put aside, as far as their shares have room, then up to so many from the queue.
#: What it finds there of a share without room it puts aside. Returns whether the queue may have more, whether
#: anything is aside, and the messages. KEYS: the queue, the worker's unacknowledged messages, the heartbeats of
#: workers. ARGV: the time and the worker's id, how many, the room of a share that is not named; then each share
#: and its room.
FETCH: Final = """
redis.call("zadd", KEYS[3], ARGV[1], ARGV[2])
local queue, most, default, room, aside = KEYS[1], tonumber(ARGV[3]), tonumber(ARGV[4]), {}, {}
for i = 5, #ARGV, 2 do room[ARGV[i]] = tonumber(ARGV[i + 1]) end
local found = {}
local function take(ids)
    redis.call("sadd", KEYS[2], unpack(ids))
    for _, data in ipairs(redis.call("hmget", queue .. ".msgs", unpack(ids))) do
        if data then table.insert(found, data) end
    end
end
for _, share in ipairs(redis.call("smembers", queue .. ".aside")) do
    local list, free = queue .. ".aside:" .. share, room[share] or default
    local ids = free > 0 and redis.call("lpop", list, free) or {}
    if ids and #ids > 0 then take(ids) end
    room[share] = free - (ids and #ids or 0)
    aside[share] = redis.call("exists", list) == 1 or nil
    if not aside[share] then redis.call("srem", queue .. ".aside", share) end
end
local taken, seen, more = 0, 0, 1
while more == 1 and taken < most and seen < 1000 do
    local asked, ours, others = most - taken, {}, {}
    local ids = redis.call("lpop", queue, asked) or {}
    if #ids < asked then more = 0 end
    seen = seen + #ids
    for _, id in ipairs(ids) do
        local share = string.match(id, "^([^|]*)|") or ""
        local free = room[share] or default
        if share ~= "" and (aside[share] or free <= 0) then
            others[share] = others[share] or {}
            table.insert(others[share], id)
            aside[share] = true
        else
            room[share] = free - 1
            table.insert(ours, id)
        end
    end
    for share, ids in pairs(others) do
        redis.call("sadd", queue .. ".aside", share)
        redis.call("rpush", queue .. ".aside:" .. share, unpack(ids))
    end
    if #ours > 0 then take(ours) end
    taken = taken + #ours
end
return {more, next(aside) and 1 or 0, found}
"""
#: Of a share no more are fetched in one go: Lua takes so many arguments.
MOST_AT_ONCE: Final = 1_000
#: A share of which is fetched more often than this, in seconds, is fetched more of at a time.
OFTEN: Final = 0.04
#: One of which less often is no more ahead than dramatiq has told it to.
SELDOM: Final = 0.2


@dataclass(slots=True)
class _Pace:
    """What a worker holds of a share and how much it may: more where messages are quick."""

    prefetch: int
    held: int = 0
    fetched_at: float = 0.0

    @property
    def free(self) -> int:
        return self.prefetch - self.held

    @property
    def part(self) -> int:
        """How many are fetched at once when there is as much to do as can be."""
        return max(1, self.prefetch // 4)

    @property
    def full(self) -> bool:
        return self.free < self.part


class Rooms:
    """How many more messages of each share a worker has room for. For any thread.

    ``least`` and ``most``: how many it holds of a share at most, where messages are slow and where they are quick.
    """

    def __init__(self, least: int, most: int) -> None:
        self.least, self._most = least, most
        self._paces: dict[str, _Pace] = {}
        self._held: dict[str, str] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def pace(self, share: str) -> _Pace:
        """What is held of a share."""
        return self._paces.setdefault(share, _Pace(self.least))

    def take(self, id: str, share: str, now: float) -> None:
        """Note a message that was fetched now. Of what is fetched often more is fetched ahead, a moment's work."""
        with self._lock:
            pace = self.pace(share)
            if now > pace.fetched_at:
                since, pace.fetched_at = now - pace.fetched_at, now
                if since < OFTEN:
                    pace.prefetch = min(self._most, 2 * pace.prefetch)
                elif since > SELDOM:
                    pace.prefetch = self.least
            pace.held += 1
            self._held[id] = share

    def leave(self, id: str) -> bool:
        """Note that a message is done with. True when that has made room for others of its share."""
        with self._lock:
            share = self._held.pop(id, None)
            if share is None:
                return False
            pace = self._paces[share]
            before, pace.held = pace.full, pace.held - 1
            return before and not pace.full

    def full(self) -> set[str]:
        """The shares that have no room."""
        with self._lock:
            return {share for share, pace in self._paces.items() if pace.full}

    def free(self) -> dict[str, int]:
        """The room of each share that holds some, or may hold more than others."""
        with self._lock:
            return {
                share: 0 if pace.full else min(pace.free, MOST_AT_ONCE)
                for share, pace in self._paces.items()
                if pace.held or pace.prefetch != self.least
            }


def arguments(free: dict[str, int]) -> Iterable[str | int]:
    """The last arguments of `FETCH`."""
    for share, room in free.items():
        yield share
        yield room
