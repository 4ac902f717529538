"""What `relay health` warns of: versions and settings with which nats-server may lose what it has acknowledged.

And streams that are nearly full, and those that take queries and would confirm them, so that the PubAck comes
instead of the answer.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, PersistMode, StorageType, StreamInfo
from nats.js.errors import NotFoundError

#: The first safe version. In older ones recovery after a crash may drop acknowledged messages.
SAFE: Final = (2, 14)
_TIMEOUT_S: Final = 3.0
#: From this part of a limit on, a stream is called full.
_NEARLY_FULL: Final = 0.9


async def risks(js: JetStreamContext, streams: Iterable[str], monitor: str | None) -> tuple[list[str], list[str]]:
    """The risks to acknowledged messages, and what could not be checked; a sentence each.

    ``monitor``: the address of the server's monitoring. Only monitoring tells when the server writes to the disk.
    Streams that do not exist are left out. Raises the errors of nats-py.
    """
    found = [*_of_version(js._nc.connected_server_version)]  # noqa: SLF001 - the context hides its client
    for name in streams:
        try:
            found += _of_stream(await js.stream_info(name))
        except NotFoundError:
            continue
    if monitor is None:
        return found, ["sync_interval cannot be checked: nats.monitor is not set"]
    try:
        found += _of_disk(await asyncio.to_thread(_read, f"{monitor.rstrip('/')}/varz"))
    except (OSError, ValueError) as error:
        return found, [f"sync_interval cannot be checked: nats.monitor does not answer ({type(error).__name__})"]
    return found, []


def _filled(info: StreamInfo) -> float:
    """How much of a limit of the stream is used up."""
    limits = ((info.state.bytes, info.config.max_bytes), (info.state.messages, info.config.max_msgs))
    return max((used / most for used, most in limits if most is not None and most > 0), default=0.0)


def _of_version(version: Any) -> Iterator[str]:
    if (version.major, version.minor) < SAFE:
        number = f"{version.major}.{version.minor}.{version.patch}"
        safe = ".".join(map(str, SAFE))
        yield f"nats-server {number} may lose acknowledged messages in a crash: run {safe} or newer"


def _of_stream(info: StreamInfo) -> Iterator[str]:
    config = info.config
    if config.storage == StorageType.MEMORY:
        yield f"stream {config.name} is in memory: a restart loses it"
    if config.persist_mode == PersistMode.ASYNC:
        yield f"stream {config.name} acknowledges before it writes (persist_mode async)"
    if config.discard != DiscardPolicy.NEW:
        yield f"stream {config.name} drops its oldest messages when full (discard old): run relay streams ensure"
    if (share := _filled(info)) >= _NEARLY_FULL:
        yield f"stream {config.name} is {share:.0%} full, then events wait: raise its limits or shorten max_age"
    if info.cluster is not None and info.cluster.name and (config.num_replicas or 1) == 1:
        yield f"stream {config.name} has one replica in a cluster: it is away, or lost, with its server"


def _of_disk(varz: Any) -> Iterator[str]:
    config = varz.get("jetstream", {}).get("config", {})
    if not config.get("sync_always"):
        seconds = config.get("sync_interval", 120_000_000_000) / 1e9
        yield f"sync_interval is {seconds:g} s: a power cut takes what was acknowledged since; set it to always"


def _read(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - the settings admit http only
        return json.load(answer)


# --- queries ---


async def answered_by_streams(js: JetStreamContext, subjects: Sequence[str]) -> list[str]:
    """The streams that would answer queries of ``subjects``, a sentence each. Raises the errors of nats-py."""
    found = []
    for subject in subjects:
        for name in await _takers(js, subject):
            try:
                config = (await js.stream_info(name)).config
            except NotFoundError:
                continue
            if not config.no_ack:
                found.append(f"stream {name} answers queries of {subject} itself: set no_ack = true")
    return found


async def _takers(js: JetStreamContext, subject: str) -> Sequence[str]:
    """The names of the streams that take some of the subjects. The first page of the server's answer is enough."""
    reply = await js._nc.request(  # noqa: SLF001 - the context hides its client
        "$JS.API.STREAM.NAMES", json.dumps({"subject": subject}).encode(), timeout=3
    )
    return json.loads(reply.data).get("streams") or ()
