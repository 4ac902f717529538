"""Gates: at most one job outstanding per duty, so that ticks never pile up (DESIGN §5).

A gate is a Redis key that expires. Losing it is harmless: the locks of the tables keep two jobs of one duty from
doing the same work twice. The gate only avoids the cost of a second job.

When a duty with an interval is done, its gate says "done" until the next run is due. So if such a duty has no
gate, its job is lost.

A job may wait in its queue for longer than its gate lives. Queues are first in, first out. While the head of the
queue is older than the job, the job still waits, and no other is sent.

A duty may have routines, each with an interval of its own. A hash says until when each rests. The job claims the
routines that are due, for a short time, and renews that while it works. If it dies, they are soon due again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple
from uuid import uuid4

import redis.asyncio
import redis.exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from relay.adapters.redis_client import CONNECTION_WAIT_S, reaching
from relay.adapters.redis_keys import SURE
from relay.concurrency import Batcher, end, is_cancelled

#: The longest back-off of a job that waits for a server. It is shorter than the life of a gate: nothing renews the
#: gate meanwhile, because the worker may die, or Redis may lose the job.
LONGEST_BACKOFF: Final = timedelta(seconds=4)
#: How many connections. All steps of gates share one; the others are for heartbeats and the like.
_MAX_CONNECTIONS: Final = 4
#: No duty is done for longer: the rarest runs every hour.
_LONGEST_DONE: Final = timedelta(days=1)
#: The suffix of the token of a job in back-off.
_WAITS: Final = ":waits"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateTimes:
    """How long a gate and a claim of routines live. A running job renews both; those of a dead job expire.

    ``claim`` is shorter than ``gate``, so that the routines of a dead job are free when the next job comes.
    ``connection_wait``: how long a step waits for a connection.
    """

    gate: timedelta = timedelta(seconds=6)
    claim: timedelta = timedelta(seconds=5)
    connection_wait: timedelta = timedelta(seconds=CONNECTION_WAIT_S)


GATE_TIMES: Final = GateTimes()


# --- the scripts. Each is atomic and takes one round trip: an idle fleet does little else. ---

_OPEN: Final = (
    SURE
    + """
local holder, queue = sure("get", KEYS[1]), KEYS[2]
if ARGV[3] ~= "force" then
    if holder and holder ~= "done" then return 0 end
    local sent = queue and not holder and sure("hget", KEYS[3], ARGV[6])
    local head = sent and sure("lindex", queue, 0)
    local message = head and sure("hget", queue .. ".msgs", head)
    local since = message and string.match(message, '"relay_enqueued":(%d+)')
    local clock = since and since ~= "0" and redis.call("time")
    -- What no job has written stands in nobody's way.
    local at = clock and tonumber(sent) or 0
    if clock and tonumber(since) <= at and at <= (clock[1] + 1) * 1000 then return 0 end
end
if queue then
    local clock = redis.call("time")
    local now = string.format("%d", clock[1] * 1000 + math.floor(clock[2] / 1000))
    sure("hset", KEYS[3], ARGV[6], now)
    local data = string.gsub(ARGV[5], '"relay_enqueued":0', '"relay_enqueued":' .. now, 1)
    sure("hset", queue .. ".msgs", ARGV[4], data)
    sure("rpush", queue, ARGV[4])
end
redis.call("set", KEYS[1], ARGV[1], "PX", ARGV[2])
return 1
"""
)
_RENEW: Final = (
    SURE
    + """
local holder = sure("get", KEYS[1])
if holder and holder ~= ARGV[1] and holder ~= ARGV[1] .. ARGV[3] then return 0 end
redis.call("set", KEYS[1], ARGV[4], "PX", ARGV[2])
return 1
"""
)
_CLOSE: Final = (
    SURE
    + """
if sure("get", KEYS[1]) ~= ARGV[1] then return end
sure("hdel", KEYS[2], ARGV[3])
if ARGV[2] == "0" then redis.call("del", KEYS[1])
else redis.call("set", KEYS[1], "done", "PX", ARGV[2]) end
"""
)
_WAKE: Final = (
    SURE
    + """
for _, key in ipairs(KEYS) do
    local holder = sure("get", key)
    if holder and string.sub(holder, -#ARGV[1]) == ARGV[1] then redis.call("del", key) end
end
"""
)
#: Claims the routines that are due. One that rests for longer than allowed was marked before the clock went back.
#: ARGV: how long a claim lives; then each routine and the longest time it may rest, in milliseconds.
_CLAIM: Final = (
    SURE
    + """
local clock, names, claimed, marks = redis.call("time"), {}, {}, {}
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
for i = 2, #ARGV, 2 do table.insert(names, ARGV[i]) end
for i, mark in ipairs(sure("hmget", KEYS[1], unpack(names))) do
    local rest = (tonumber(mark or 0) or 0) - now
    -- Not the other way round: a foreign value may be no number at all, and is compared as false.
    if not (rest > 0 and rest <= tonumber(ARGV[2 * i + 1])) then
        table.insert(claimed, names[i])
        table.insert(marks, names[i])
        table.insert(marks, string.format("%d", now + ARGV[1]))
    end
end
if #marks > 0 then sure("hset", KEYS[1], unpack(marks)) end
return {now, claimed}
"""
)
#: Lets every gate expire, and removes keys of another type: another program wrote them, or an operator. If a job
#: holds the gate, it renews it in time. A user who may not ask for the expiry mends what no job has written.
#: KEYS: gates, then hashes. ARGV: how long a gate lives, how many gates there are, how long a duty may count as
#: done. Returns what was mended.
_MEND: Final = """
local mended = {}
for i, key in ipairs(KEYS) do
    if i > tonumber(ARGV[2]) then
        local size = redis.pcall("hlen", key)
        if type(size) == "table" then redis.call("del", key) table.insert(mended, key) end
    else
        local holder, left = redis.pcall("get", key), redis.pcall("pttl", key)
        if type(holder) == "table" then
            redis.call("del", key)
            table.insert(mended, key)
        elseif holder then
            local ours = holder == "done" or string.match(holder, "^%x+:%d+")
            local longest = tonumber(holder == "done" and ARGV[3] or ARGV[1])
            if type(left) == "number" and (left == -1 or left > longest) or type(left) == "table" and not ours then
                redis.call("set", key, holder, "PX", ARGV[1])
                table.insert(mended, key)
            end
        end
    end
end
return mended
"""
_SCRIPTS: Final = (_OPEN, _RENEW, _CLOSE, _WAKE, _CLAIM, _MEND)


def gate_key(namespace: str, duty: str) -> str:
    """The key of a duty's gate."""
    return f"{namespace}:gate:{duty}"


def routines_key(namespace: str, duty: str) -> str:
    """The key that says until when the routines of a duty rest."""
    return f"{namespace}:routines:{duty}"


def sent_key(namespace: str) -> str:
    """The key that says when the outstanding job of each duty was sent."""
    return f"{namespace}:sent"


class QueueEntry(NamedTuple):
    """A message as it is in its queue: the key of the queue, the id, and the encoded message."""

    queue: str
    id: str
    data: bytes


class Hold:
    """Whether a running job still has its gate. True until a renewal finds that another job has taken it over."""

    __slots__ = ("_ours",)

    def __init__(self, ours: bool) -> None:
        self._ours = ours

    def __bool__(self) -> bool:
        return self._ours

    def lose(self) -> None:
        """Another job has the gate."""
        self._ours = False


class Gates:
    """The gates of one Redis namespace. ``access`` goes to the client of Redis."""

    def __init__(self, url: str, namespace: str, *, times: GateTimes = GATE_TIMES, **access: Any) -> None:
        self._namespace, self.times = namespace, times
        #: When the outstanding job of each duty was sent.
        self._sent = sent_key(namespace)
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            url,
            **access,
            max_connections=_MAX_CONNECTIONS,
            timeout=times.connection_wait.total_seconds(),
            socket_timeout=2,
            socket_connect_timeout=2,
            decode_responses=True,
            retry=Retry(NoBackoff(), 1),
        )
        self._client: Any = redis.asyncio.Redis.from_pool(pool)
        scripts = (self._client.register_script(it).sha for it in _SCRIPTS)
        self._open, self._extend, self._close, self._wake, self._claim, self._mend = scripts
        self._holds: dict[Hold, tuple[str, str]] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._questions: Batcher[Sequence[str], list[str]] = Batcher(self._lost)
        self._steps: Batcher[Sequence[Any], Any] = Batcher(self._together)

    async def open(
        self,
        duty: str,
        *,
        force: bool = False,
        interval: timedelta = timedelta(),
        send: Callable[[str], QueueEntry] | None = None,
    ) -> str | None:
        """Open the gate for a new job; returns its token, or None when a job is outstanding.

        ``force`` takes the gate over: the job that has it finds another token and ends. ``interval``: how long the
        duty counts as done afterwards (`lost`). ``send`` makes the job's message from the token; the same step
        puts it into its queue. Raises QueueUnreachable.
        """
        token = f"{uuid4().hex}:{_ms(interval)}"
        keys: list[str] = [self._key(duty)]
        args: list[str | int | bytes] = [token, _ms(self.times.gate), "force" if force else ""]
        if send is not None:
            entry = send(token)
            keys += [entry.queue, self._sent]
            args += [entry.id, entry.data, duty]
        with reaching():
            opened = await self._run(self._open, keys, args)
        return token if opened else None

    @asynccontextmanager
    async def hold(self, duty: str, token: str) -> AsyncIterator[Hold]:
        """Hold the gate while a job runs. The hold is false when another job has taken over, or has done the duty.

        It may become false while the job runs: a gate can expire while Redis is frozen, and the next tick sends
        another job. That job may wait for the thread of this one. So a long job checks its hold from time to time,
        and ends if the hold is false. During an outage of Redis the job runs on: the tables keep two jobs apart.
        """
        hold = Hold(await self._renew(duty, token))
        if not hold:
            yield hold
            return
        self._holds[hold] = duty, token
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep())
        try:
            yield hold
        finally:
            del self._holds[hold]
            if not self._holds:
                keeper, self._keeper = self._keeper, None
                await end(keeper)

    async def close(self, duty: str, token: str, *, well: bool = True) -> None:
        """The job has ended: the next tick may start another. A job that did not end well waits only briefly."""
        interval = int(token.partition(":")[2] or 0)
        if not well:
            interval = min(interval, _ms(LONGEST_BACKOFF))
        keys = [self._key(duty), self._sent]
        await self._quietly(self._run(self._close, keys, [token, interval, duty]))

    async def lost(self, duties: Sequence[str]) -> list[str]:
        """Return the duties that are not done and have no job outstanding; none if Redis does not answer.

        Callers at the same time share one question. Mostly all gates exist; a count is enough to see that.
        """
        return await self._questions.ask(duties)

    async def _lost(self, questions: Sequence[Sequence[str]]) -> list[list[str]]:
        keys = list({self._key(duty): None for duties in questions for duty in duties})
        count = await self._quietly(self._client.exists(*keys)) if keys else 0
        if count is None or count == len(keys):
            return [[] for _ in questions]
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.exists(key)
        exists = dict(zip(keys, await self._quietly(pipeline.execute()) or keys, strict=True))
        return [[duty for duty in duties if not exists[self._key(duty)]] for duties in questions]

    async def back_off(self, duty: str, token: str) -> None:
        """The job waits for a server and returns within LONGEST_BACKOFF. Until then ticks start no other."""
        await self._renew(duty, token, _WAITS)

    async def wake(self, duties: Sequence[str]) -> None:
        """A server is back: open the gates of jobs in back-off, so that the next tick starts new jobs."""
        if duties:
            await self._quietly(self._run(self._wake, [self._key(duty) for duty in duties], [_WAITS]))

    async def mend(self, duties: Sequence[str]) -> Sequence[str]:
        """Let every gate of these duties expire, and remove keys of the wrong type; return what was mended.

        A gate that never expires holds its duty up for ever. None of ours is written without expiry.
        """
        gates, hashes = [self._key(duty) for duty in duties], [self._routines(duty) for duty in duties]
        keys = [*gates, *hashes, self._sent]
        return (
            await self._quietly(
                self._run(self._mend, keys, [_ms(self.times.gate), len(gates), _ms(_LONGEST_DONE)])
            )
            or []
        )

    # --- the routines of a duty ---

    async def claim(self, duty: str, routines: Mapping[str, timedelta]) -> tuple[int, list[str]]:
        """Claim the routines that are due; returns the time in milliseconds, and their names.

        ``routines``: the longest time that each may rest. Raises QueueUnreachable.
        """
        life = _ms(self.times.claim)
        longest = [(name, max(_ms(rest), life)) for name, rest in routines.items()]
        args: list[str | int] = [life, *(it for pair in longest for it in pair)]
        with reaching():
            now, claimed = await self._run(self._claim, [self._routines(duty)], args)
        return now, claimed

    async def rest(self, duty: str, until: Mapping[str, int]) -> None:
        """Note until when routines rest, in milliseconds on the clock of `claim`."""
        if until:
            pairs = (it for pair in until.items() for it in pair)
            await self._quietly(self._step("HSET", self._routines(duty), *pairs))

    async def forget_rest(self, duty: str) -> None:
        """Make all routines of a duty due. Raises QueueUnreachable."""
        with reaching():
            await self._client.delete(self._routines(duty))

    @property
    def client(self) -> Any:
        """The client, for others that use the same connections."""
        return self._client

    async def aclose(self) -> None:
        """Close the connections to Redis."""
        await self._quietly(self._client.aclose())

    async def _keep(self) -> None:
        """Renew all gates that this process holds, in one round trip."""
        while not is_cancelled():
            await asyncio.sleep(self.times.gate.total_seconds() / 3)
            await asyncio.gather(*(self._still(hold) for hold in list(self._holds)), return_exceptions=True)

    async def _still(self, hold: Hold) -> None:
        """Renew a gate, unless its job has just ended. A renewal that comes after `close` would take it again."""
        if hold and (job := self._holds.get(hold)) is not None and not await self._renew(*job):
            hold.lose()

    async def _renew(self, duty: str, token: str, state: str = "") -> bool:
        """Extend the gate, or take it when no job has it. False only when another job has it."""
        args: list[str | int] = [token, _ms(self.times.gate), _WAITS, token + state]
        kept = await self._quietly(self._run(self._extend, [self._key(duty)], args))
        return kept is None or bool(kept)

    async def _run(self, script: str, keys: Sequence[str], args: Sequence[str | int | bytes]) -> Any:
        return await self._step("EVALSHA", script, len(keys), *keys, *args)

    async def _step(self, *words: str | int | bytes) -> Any:
        """Run a command after all earlier ones. Commands of the same moment share a round trip."""
        answer = await self._steps.ask(words)
        if isinstance(answer, redis.exceptions.RedisError):
            raise answer
        return answer

    async def _together(self, steps: Sequence[Sequence[Any]]) -> Sequence[Any]:
        answers = await self._piped(steps)
        if any(isinstance(it, redis.exceptions.NoScriptError) for it in answers):
            # Redis has restarted.
            for script in _SCRIPTS:
                await self._client.script_load(script)
            unknown = [at for at, it in enumerate(answers) if isinstance(it, redis.exceptions.NoScriptError)]
            for at, answer in zip(unknown, await self._piped([steps[at] for at in unknown]), strict=True):
                answers[at] = answer
        return answers

    async def _piped(self, steps: Sequence[Sequence[Any]]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for words in steps:
            pipeline.execute_command(*words)
        return list(await pipeline.execute(raise_on_error=False))

    async def _quietly(self, command: Any) -> Any:
        try:
            return await command
        except redis.exceptions.RedisError:
            return None

    async def of_context(self, context: str, *, delete: bool) -> int:
        """Count, and ``delete``, the keys of a context that no fleet serves any more. Raises QueueUnreachable."""
        keys, parts = list[str](), (gate_key(self._namespace, ""), routines_key(self._namespace, ""))
        with reaching():
            for part in parts:
                async for key in self._client.scan_iter(match=f"{part}*", count=1_000):
                    if _is_of(key.removeprefix(part), context):
                        keys.append(key)
            sent = [it for it in await self._client.hkeys(self._sent) if _is_of(it, context)]
            if delete and keys:
                await self._client.delete(*keys)
            if delete and sent:
                await self._client.hdel(self._sent, *sent)
        return len(keys) + len(sent)

    def _key(self, duty: str) -> str:
        return gate_key(self._namespace, duty)

    def _routines(self, duty: str) -> str:
        return routines_key(self._namespace, duty)


def _is_of(duty: str, context: str) -> bool:
    return duty.split(":")[1:2] == [context]


def _ms(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)
