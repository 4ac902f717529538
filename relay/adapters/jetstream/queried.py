"""Finds streams that take queries and would confirm them, so that the PubAck comes instead of the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence

from nats.js import JetStreamContext
from nats.js.errors import NotFoundError


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
