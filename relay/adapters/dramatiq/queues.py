"""Looks into the queues in Redis, and moves dead jobs. It uses the names of keys, and never searches for keys.

The layout is Dramatiq's (dispatch.lua of version 2.2) and that of `relay.adapters.dramatiq.shares`. The list of a
queue and those of deferred messages hold the ids of what waits. ``.msgs`` holds messages, also those in the hands
of workers; ``.DQ.msgs`` holds what is delayed. ``.XQ`` has the dead jobs, by the time when they died, with their
messages in ``.XQ.msgs``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from uuid import uuid4

from dramatiq import Message

from relay.adapters.dramatiq.reading import read_job
from relay.adapters.dramatiq.shares import DEFERRED, MARK, share_of
from relay.adapters.redis_client import reached
from relay.domain.queues import Job, JobPage, JobState, QueueView

Answer = TypeVar("Answer")

#: How many steps of HSCAN a page of delayed jobs takes at most.
_MAX_STEPS: Final = 20
#: Options of a job from its earlier attempts. They are removed when the job is put back.
_SPENT: Final = frozenset(
    {"eta", "retries", "traceback", "requeue_timestamp", "redis_message_id", "relay_enqueued"}
)
#: KEYS: the dead, their messages, the messages of the queue, the queue. ARGV: id, new id and message, in turn.
_REQUEUE: Final = """
local moved = {}
for i = 1, #ARGV, 3 do
    if redis.call("zrem", KEYS[1], ARGV[i]) == 1 then
        redis.call("hdel", KEYS[2], ARGV[i])
        redis.call("hset", KEYS[3], ARGV[i + 1], ARGV[i + 2])
        redis.call("rpush", KEYS[4], ARGV[i + 1])
        table.insert(moved, ARGV[i])
    end
end
return moved
"""
#: KEYS: the dead, their messages. ARGV: ids.
_DELETE: Final = """
local gone = {}
for _, id in ipairs(ARGV) do
    if redis.call("zrem", KEYS[1], id) == 1 then
        redis.call("hdel", KEYS[2], id)
        table.insert(gone, id)
    end
end
return gone
"""


#: Of a job that is longer, only the id is shown, and of all jobs of a page at most so many bytes.
_TEXT_BYTES: Final = 64 * 1024
_PAGE_BYTES: Final = 2 * 1024**2
_ID_BYTES: Final = 300
#: KEYS: the dead, their messages. ARGV: the first and the last. Returns an id, a time and a text, in turn.
_DEAD: Final = f"""
local found, bytes = {{}}, 0
local dead = redis.call("zrevrange", KEYS[1], ARGV[1], ARGV[2], "WITHSCORES")
for i = 1, #dead, 2 do
    local text = redis.call("hget", KEYS[2], dead[i]) or ""
    if #text > {_TEXT_BYTES} or bytes + #text > {_PAGE_BYTES} then text = "" end
    bytes = bytes + #text
    for _, it in ipairs({{string.sub(dead[i], 1, {_ID_BYTES}), dead[i + 1], text}}) do table.insert(found, it) end
end
return found
"""
#: KEYS: messages. ARGV: the cursor, how many, how many bytes. Returns the cursor; then an id and a text, in turn.
_DELAYED: Final = f"""
local step = redis.call("hscan", KEYS[1], ARGV[1], "COUNT", ARGV[2])
local found, bytes = {{step[1]}}, 0
for i = 1, #step[2], 2 do
    local id, text = step[2][i], step[2][i + 1]
    if #text > {_TEXT_BYTES} or bytes + #text > tonumber(ARGV[3]) then text = "" end
    bytes = bytes + #text
    for _, it in ipairs({{string.sub(id, 1, {_ID_BYTES}), text}}) do table.insert(found, it) end
end
return found
"""


class JobQueues:
    """The queues of a namespace of Redis, on a client that decodes text. All raise QueueUnreachable."""

    def __init__(self, client: Any, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._requeue, self._delete = client.register_script(_REQUEUE), client.register_script(_DELETE)
        self._list_dead, self._list_delayed = client.register_script(_DEAD), client.register_script(_DELAYED)

    async def count(self, names: Sequence[str]) -> Sequence[QueueView]:
        """How many jobs each queue has.

        Two round trips. A job that moves meanwhile may count twice, or not at all.
        """
        pipeline = self._client.pipeline(transaction=False)
        for key in map(self._key, names):
            pipeline.llen(key).smembers(f"{key}{DEFERRED}").hlen(f"{key}.msgs").hlen(f"{key}.DQ.msgs").zcard(
                f"{key}.XQ"
            )
        answers = await reached(pipeline.execute())
        rows = [answers[start : start + 5] for start in range(0, len(answers), 5)]
        deferred = await self._deferred({name: row[1] for name, row in zip(names, rows, strict=True)})
        return [
            QueueView(
                name=name,
                waiting=listed + deferred[name],
                delayed=delayed,
                in_flight=max(0, messages - listed - deferred[name]),
                dead=dead,
            )
            for name, (listed, _, messages, delayed, dead) in zip(names, rows, strict=True)
        ]

    async def _deferred(self, shares: Mapping[str, Sequence[str]]) -> Mapping[str, int]:
        """How many jobs of each queue workers have deferred, because their shares had no capacity."""
        pipeline = self._client.pipeline(transaction=False)
        lists = [(name, share) for name, its in shares.items() for share in its]
        for name, share in lists:
            pipeline.llen(f"{self._key(name)}{DEFERRED}:{share}")
        lengths = await reached(pipeline.execute()) if lists else []
        counts = dict.fromkeys(shares, 0)
        for (name, _), length in zip(lists, lengths, strict=True):
            counts[name] += length
        return counts

    async def page(self, queue: str, state: JobState, limit: int, after: str | None) -> JobPage:
        """Up to ``limit`` jobs of a queue, or a few more delayed ones. ``after``: ``next`` of the page before.

        Of dead jobs the last that died comes first. Delayed jobs have no order from page to page.
        """
        return await (self._dead if state is JobState.DEAD else self._delayed)(queue, limit, int(after or 0))

    async def _dead(self, queue: str, limit: int, start: int) -> JobPage:
        key = f"{self._key(queue)}.XQ"
        total = await reached(self._client.zcard(key))
        found = await reached(self._list_dead(keys=[key, f"{key}.msgs"], args=[start, start + limit - 1]))
        dead = zip(found[::3], found[1::3], found[2::3], strict=True)
        items = [_job(id, text or None, died=float(score)) for id, score, text in dead]
        return JobPage(items, total, str(start + limit) if start + limit < total else None)

    async def _delayed(self, queue: str, limit: int, cursor: int) -> JobPage:
        key, items = f"{self._key(queue)}.DQ.msgs", list[Job]()
        total = await reached(self._client.hlen(key))
        left = _PAGE_BYTES
        for _ in range(_MAX_STEPS):
            after, *found = await reached(self._list_delayed(keys=[key], args=[cursor, limit, left]))
            cursor, left = int(after), left - sum(map(len, found[1::2]))
            items += [_job(id, text or None) for id, text in zip(found[::2], found[1::2], strict=True)]
            if not cursor or len(items) >= limit:
                break
        return JobPage(sorted(items, key=_due), total, str(cursor) if cursor else None)

    async def dead_ids(self, queue: str, limit: int) -> Sequence[str]:
        """The ids of up to ``limit`` dead jobs, the last that died first."""
        ids: list[str] = await reached(self._client.zrevrange(f"{self._key(queue)}.XQ", 0, limit - 1))
        return ids

    async def dead(self, queue: str, ids: Sequence[str]) -> Mapping[str, Message[Any] | None]:
        """Which of these jobs are dead, and their messages; None for one that cannot be read."""
        return {id: read_job(text) for id, text in (await self._texts(queue, ids)).items()}

    async def requeue(self, queue: str, messages: Mapping[str, Message[Any]]) -> Sequence[str]:
        """Put dead jobs back into their queue, under new ids, with new attempts; return those that were dead."""
        args = [part for id, message in messages.items() for part in (id, *_again(queue, message))]
        key = self._key(queue)
        keys = [f"{key}.XQ", f"{key}.XQ.msgs", f"{key}.msgs", key]
        moved: list[str] = await reached(self._requeue(keys=keys, args=args)) if args else []
        return moved

    async def delete(self, queue: str, ids: Sequence[str]) -> Sequence[str]:
        """Remove dead jobs; return those that were there."""
        key = self._key(queue)
        keys = [f"{key}.XQ", f"{key}.XQ.msgs"]
        gone: list[str] = await reached(self._delete(keys=keys, args=list(ids))) if ids else []
        return gone

    async def _texts(self, queue: str, ids: Sequence[str]) -> Mapping[str, str]:
        """The messages of dead jobs by their ids, those that are there."""
        texts = await reached(self._client.hmget(f"{self._key(queue)}.XQ.msgs", list(ids))) if ids else []
        return {id: text for id, text in zip(ids, texts, strict=True) if text is not None}

    def _key(self, queue: str) -> str:
        return f"{self._namespace}:{queue}"


def _again(queue: str, message: Message[Any]) -> tuple[str, bytes]:
    """A job as if it were new: its id, which begins with its share, and its text."""
    identity = f"{share_of(message)}{MARK}{uuid4()}"
    options = {name: value for name, value in message.options.items() if name not in _SPENT}
    copy: Message[Any] = Message(
        queue_name=queue,
        actor_name=message.actor_name,
        args=message.args,
        kwargs=message.kwargs,
        options={**options, "redis_message_id": identity},
    )
    return identity, copy.encode()


def _job(id: str, text: str | None, died: float | None = None) -> Job:
    message = None if text is None else read_job(text)
    if message is None:
        return Job(id=id, at=_time(died))
    return Job(
        id=id,
        actor=message.actor_name,
        share=share_of(message) or None,
        created_at=_time(message.message_timestamp),
        at=_time(message.options.get("eta") if died is None else died),
        args=list(message.args),
    )


def _due(job: Job) -> datetime:
    return job.at or datetime.max.replace(tzinfo=UTC)


def _time(milliseconds: Any) -> datetime | None:
    try:
        return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return None
