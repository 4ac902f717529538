"""What Redis says about itself, and whether a program listens at an address. Only reads."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import redis
import redis.asyncio
import redis.exceptions

from relay.adapters.dramatiq.gates import gate_key, routines_key, sent_key
from relay.adapters.dramatiq.queues import JobQueues
from relay.adapters.members import Members
from relay.adapters.redis_client import reached
from relay.adapters.redis_keys import fleet_keys, queue_keys, wrong_type
from relay.domain.errors import QueueUnreachable
from relay.domain.members import Seen
from relay.domain.queues import QueueView

Answer = TypeVar("Answer")

_TIMEOUT_S: Final = 3.0
#: Dramatiq counts a worker without a heartbeat for this time as dead, in milliseconds.
_DEAD_MS: Final = 60_000
#: What gates hold: the token of a job, or the word for a duty that is done.
_HELD: Final = re.compile(r"done|[0-9a-f]{32}:[0-9]+(:waits)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """The server of the queue.

    Sizes in bytes, ``limit`` 0 for none. ``policy``: which keys it evicts when it is full.

    ``ahead``: how far this machine's clock is ahead of the server's, in seconds, exact to ``exact``. ``workers``:
    how many processes take jobs from the queue. ``refused``: commands that our user may not use; what they answer
    is not known.

    ``wrong``: keys of ours that hold another type of value. ``stuck``: gates that never expire, so that no job
    holds them. ``members``: the processes of the fleets. ``queues``: what waits, by name, if it is known.
    """

    version: str = ""
    policy: str = "noeviction"
    limit: int = 0
    used: int = 0
    replica: bool = False
    ahead: float = 0.0
    exact: float = 0.0
    workers: int = 0
    refused: str = ""
    wrong: Sequence[str] = ()
    stuck: Sequence[str] = ()
    members: Sequence[Seen] = ()
    queues: Mapping[str, QueueView] = field(default_factory=dict)


async def look(
    url: str,
    namespace: str,
    options: Mapping[str, Any],
    queues: Sequence[str] = (),
    duties: Sequence[str] = (),
) -> QueueState:
    """Ask Redis. Raises QueueUnreachable. ``options``: as `relay.credentials.redis_options` returns them.

    ``queues``, ``duties``: the names of those whose keys are looked at.
    """
    client = redis.asyncio.Redis.from_url(
        url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S, decode_responses=True, **options
    )
    try:
        return await reached(_look(client, namespace, queues, duties))
    finally:
        await client.aclose()


async def _look(client: Any, namespace: str, queues: Sequence[str], duties: Sequence[str]) -> QueueState:
    await client.ping()
    begin = time.time()
    seconds, micros = await client.time()
    end = time.time()
    wrong = await _wrong(client, namespace, queues, duties)
    heartbeats = f"{namespace}:__heartbeats__"
    living = (
        []
        if heartbeats in wrong
        else await client.zrangebyscore(heartbeats, int(seconds * 1000) - _DEAD_MS, "+inf")
    )
    try:
        info, refused = await client.info(), ""
    except redis.exceptions.NoPermissionError:
        info, refused = {}, "INFO"
    return QueueState(
        version=str(info.get("valkey_version") or info.get("redis_version") or ""),
        policy=str(info.get("maxmemory_policy", "noeviction")),
        limit=int(info.get("maxmemory", 0)),
        used=int(info.get("used_memory", 0)),
        replica=info.get("role") == "slave",
        ahead=(begin + end) / 2 - (seconds + micros / 1e6),
        exact=(end - begin) / 2,
        workers=len(living),
        refused=refused,
        wrong=wrong,
        stuck=await _stuck(client, namespace, duties),
        members=await _quietly(Members(client, namespace).all()),
        queues={it.name: it for it in await _quietly(JobQueues(client, namespace).count(queues))},
    )


async def _quietly(answer: Awaitable[Sequence[Answer]]) -> Sequence[Answer]:
    """The answer; nothing if a key has the wrong type, which is told beside it."""
    try:
        return await answer
    except QueueUnreachable:
        return ()


async def _wrong(client: Any, namespace: str, queues: Sequence[str], duties: Sequence[str]) -> Sequence[str]:
    """The keys whose value has another type than ours. Each is read as what it should be: this needs no right."""
    readers = {**fleet_keys(namespace), sent_key(namespace): "HLEN"}
    for name in queues:
        readers |= queue_keys(namespace, name)
    for duty in duties:
        readers |= {gate_key(namespace, duty): "GET", routines_key(namespace, duty): "HLEN"}
    pipeline = client.pipeline(transaction=False)
    for key, command in readers.items():
        pipeline.execute_command(command, key)
    answers = await pipeline.execute(raise_on_error=False)
    return [key for key, answer in zip(readers, answers, strict=True) if wrong_type(answer)]


async def _stuck(client: Any, namespace: str, duties: Sequence[str]) -> Sequence[str]:
    """The gates without expiry. A user who may not ask that sees those that hold what no job has written."""
    keys = [gate_key(namespace, duty) for duty in duties]
    pipeline = client.pipeline(transaction=False)
    for key in keys:
        pipeline.pttl(key).get(key)
    answers = await pipeline.execute(raise_on_error=False)
    found = []
    for key, left, held in zip(keys, answers[::2], answers[1::2], strict=True):
        foreign = isinstance(held, str) and not _HELD.fullmatch(held)
        if left == -1 or (isinstance(left, Exception) and foreign):
            found.append(key)
    return found


async def listens(host: str, port: int) -> str:
    """Whether a program accepts connections there: "" if so, else why not. Sends nothing."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"no answer within {_TIMEOUT_S:g} s"
    except OSError as error:
        return error.strerror or type(error).__name__
    writer.close()
    return ""
