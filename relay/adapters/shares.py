"""The shares of a queue: the share with the least work under way goes first.

Messages of a subscription, tasks of a context and runs of a cron job each have a share of their queue. So a
handler that hangs holds up no other share. The share stands in the message, and at the beginning of its id in
Redis, where the script that fetches reads it.

A worker puts a message it has no capacity for into a list aside, one list for each share. So it sees the messages
behind it. A worker with capacity for the share takes from its list first. The lists belong to the queue, not to a
worker: messages stay in order within their share, and when a worker dies, the others take what it put aside.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from dramatiq.broker import MessageProxy
from dramatiq.message import Message

#: The option that names a share.
SHARE: Final = "share"
#: Ends the name of a share in the id of a message.
MARK: Final = "|"
#: Ends the key that names the shares with messages that were put aside.
ASIDE: Final = ".aside"
#: Fetches messages: first those put aside, as far as their shares have capacity, then a limited number from the
#: queue. A message from the queue whose share has no capacity goes aside. Returns three values: whether the queue
#: may have more, whether anything is aside, and the messages. KEYS: the queue, the worker's unacknowledged
#: messages, the heartbeats of workers. ARGV: the time, the worker's id, the limit, the capacity of a share that is
#: not named; then each share and its capacity.
FETCH: Final = """
redis.call("zadd", KEYS[3], ARGV[1], ARGV[2])
local queue, most, default, capacity, aside = KEYS[1], tonumber(ARGV[3]), tonumber(ARGV[4]), {}, {}
for i = 5, #ARGV, 2 do capacity[ARGV[i]] = tonumber(ARGV[i + 1]) end
local found = {}
local function take(ids)
    redis.call("sadd", KEYS[2], unpack(ids))
    for _, data in ipairs(redis.call("hmget", queue .. ".msgs", unpack(ids))) do
        if data then table.insert(found, data) end
    end
end
for _, share in ipairs(redis.call("smembers", queue .. ".aside")) do
    local list, free = queue .. ".aside:" .. share, capacity[share] or default
    local ids = free > 0 and redis.call("lpop", list, free) or {}
    if ids and #ids > 0 then take(ids) end
    capacity[share] = free - (ids and #ids or 0)
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
        local free = capacity[share] or default
        if share ~= "" and (aside[share] or free <= 0) then
            others[share] = others[share] or {}
            table.insert(others[share], id)
            aside[share] = true
        else
            capacity[share] = free - 1
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
#: As the broker's own script: a message that was given back to the queue meanwhile keeps its content.
ACK: Final = """
for _, id in ipairs(ARGV) do
    if redis.call("srem", KEYS[1], id) > 0 then redis.call("hdel", KEYS[2], id) end
end
"""
#: Puts what a worker has fetched and not finished back into its queues. KEYS: in turn its unacknowledged messages
#: of a queue, and the queue.
GIVE_BACK: Final = """
for i = 1, #KEYS, 2 do
    for _, id in ipairs(redis.call("smembers", KEYS[i])) do
        if redis.call("hexists", KEYS[i + 1] .. ".msgs", id) == 1 then redis.call("rpush", KEYS[i + 1], id) end
    end
    redis.call("del", KEYS[i])
end
"""
#: The most messages of a share in one fetch. Lua limits the number of arguments of a call.
MAX_FETCH_MESSAGES: Final = 1_000
#: When a share is fetched again within this time, in seconds, its prefetch doubles.
OFTEN_S: Final = 0.04
#: When a share is not fetched for longer than this, in seconds, its prefetch is dramatiq's own again.
SELDOM_S: Final = 0.2


def share_of(message: Message[Any] | MessageProxy) -> str:
    """The share of a message; empty when its queue has no shares."""
    return str(message.options.get(SHARE, ""))


@dataclass(slots=True)
class _Pace:
    """How many messages of a share a worker holds, and how many it may hold: more where messages are quick."""

    prefetch: int
    held: int = 0
    fetched_at: float = 0.0

    @property
    def free(self) -> int:
        return self.prefetch - self.held

    @property
    def part(self) -> int:
        """How many messages are fetched at once under full load."""
        return max(1, self.prefetch // 4)

    @property
    def full(self) -> bool:
        return self.free < self.part


class Capacity:
    """How many more messages of each share a worker has capacity for. Safe in any thread.

    A worker holds at most ``least`` messages of a share where messages are slow, ``most`` where they are quick.
    """

    def __init__(self, least: int, most: int) -> None:
        self.least, self._most = least, most
        self._paces: dict[str, _Pace] = {}
        self._held: dict[str, str] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def pace(self, share: str) -> _Pace:
        """The pace of a share: what is held of it, and its prefetch."""
        return self._paces.setdefault(share, _Pace(self.least))

    def take(self, id: str, share: str, now: float) -> None:
        """Note a message that was fetched at ``now``. A share that is fetched often gets a larger prefetch."""
        with self._lock:
            pace = self.pace(share)
            if now > pace.fetched_at:
                since, pace.fetched_at = now - pace.fetched_at, now
                if since < OFTEN_S:
                    pace.prefetch = min(self._most, 2 * pace.prefetch)
                elif since > SELDOM_S:
                    pace.prefetch = self.least
            pace.held += 1
            self._held[id] = share

    def release(self, id: str) -> bool:
        """Note that a message is finished. True when that frees capacity for others of its share."""
        with self._lock:
            share = self._held.pop(id, None)
            if share is None:
                return False
            pace = self._paces[share]
            before, pace.held = pace.full, pace.held - 1
            return before and not pace.full

    def full(self) -> set[str]:
        """The shares that have no capacity."""
        with self._lock:
            return {share for share, pace in self._paces.items() if pace.full}

    def free(self) -> dict[str, int]:
        """The capacity of each share that holds messages or has a prefetch of its own."""
        with self._lock:
            return {
                share: 0 if pace.full else min(pace.free, MAX_FETCH_MESSAGES)
                for share, pace in self._paces.items()
                if pace.held or pace.prefetch != self.least
            }


def arguments(free: dict[str, int]) -> Iterable[str | int]:
    """The last arguments of `FETCH`."""
    for share, capacity in free.items():
        yield share
        yield capacity
