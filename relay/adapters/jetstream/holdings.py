"""How much streams hold, and since when."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from relay.adapters.jetstream.topology import find_stream, talking


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a stream holds. ``oldest_at``: when it stored its first message; None if that was not asked."""

    messages: int = 0
    size: int = 0
    oldest_at: datetime | None = None


async def holding(js: JetStreamContext, name: str, *, dated: bool) -> Holding | None:
    """What a stream holds; None if there is none. ``dated``: read its first message. Raises BrokerUnreachable."""
    with talking(f"stream {name}"):
        if (info := await find_stream(js, name)) is None:
            return None
        state = info.state
        at = await _stored_at(js, name, state.first_seq) if dated and state.messages else None
        return Holding(messages=state.messages, size=state.bytes, oldest_at=at)


async def _stored_at(js: JetStreamContext, name: str, seq: int) -> datetime | None:
    try:
        return (await js.get_msg(name, seq=seq)).time
    except NotFoundError:
        return None  # it has just gone


async def holdings(js: JetStreamContext, names: Collection[str], dated: Collection[str]) -> dict[str, Holding]:
    """What the streams that exist hold. ``dated``: those whose first message may be read."""
    found = {name: await holding(js, name, dated=name in dated) for name in names}
    return {name: it for name, it in found.items() if it is not None}
