"""What a context that was renamed or removed has left on NATS: streams, consumers, advisories, dead letters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from nats.js import JetStreamContext
from nats.js.api import ConsumerInfo, StreamInfo

from relay.adapters.jetstream.topology import talking
from relay.domain.routing import dead_letter_subject
from relay.domain.topology import RELAY_ADVISORIES

#: How many streams or consumers an answer of the server names.
_PAGE: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A stream, or a durable of another stream. ``waiting``: how many messages somebody has not read yet.

    ``messages``: how many a stream has. ``read_up_to``: the place up to which every reader has read it.
    ``letters``: it has dead letters.
    """

    stream: str
    durable: str | None = None
    messages: int = 0
    waiting: int = 0
    read_up_to: int = 0
    last: int = 0
    letters: bool = False

    @property
    def name(self) -> str:
        """What it is, and its name."""
        return f"stream {self.stream}" if self.durable is None else f"consumer {self.stream}/{self.durable}"


async def left_of(
    js: JetStreamContext, context: str, streams: Collection[str], consumers: Collection[tuple[str, str]]
) -> Sequence[Leftover]:
    """What bears the name of a context, besides the declared ``streams`` and ``consumers`` (stream and durable).

    Raises BrokerUnreachable, and ConfigurationError if the server refuses.
    """
    found = list[Leftover]()
    with talking(f"what {context} has left"):
        infos = await _streams(js)
        left = {it.config.name or "" for it in infos if it.config.name not in streams and _is_of(it, context)}
        for info in infos:
            name = info.config.name or ""
            durables = [it for it in await _consumers(js, name) if it.config.durable_name]
            if name in left:
                found.append(_stream(info, durables, context))
                continue
            for it in durables:
                durable = it.config.durable_name or ""
                if (name, durable) not in consumers and _names(name, durable, context, left):
                    found.append(Leftover(stream=name, durable=durable, waiting=_waits(it)))
    return found


async def remove(js: JetStreamContext, leftovers: Sequence[Leftover]) -> None:
    """Delete them. Raises as `left_of`."""
    with talking("removal"):
        for it in leftovers:
            if it.durable is None:
                await js.delete_stream(it.stream)
            else:
                await js.delete_consumer(it.stream, it.durable)


def _is_of(info: StreamInfo, context: str) -> bool:
    named = info.config.name in (f"{context.upper()}_EVENTS", f"{context.upper()}_DLQ")
    subjects = info.config.subjects or []
    return named or (bool(subjects) and all(it.startswith(f"{context}.") for it in subjects))


def _stream(info: StreamInfo, durables: Sequence[ConsumerInfo], context: str) -> Leftover:
    readers = [it for it in durables if not (it.config.durable_name or "").startswith("relay__")]
    floors = [_floor(it, info.state.last_seq) for it in readers]
    return Leftover(
        stream=info.config.name or "",
        messages=info.state.messages,
        waiting=sum(map(_waits, readers)),
        read_up_to=min(floors, default=info.state.last_seq),
        last=info.state.last_seq,
        letters=info.config.subjects == [dead_letter_subject(context, ">")],
    )


def _names(stream: str, durable: str, context: str, left: Collection[str]) -> bool:
    """Whether a durable is that of a subscription of the context, or one of ours about the context."""
    if durable.startswith(f"{context}__") or durable == f"relay__{context}__dead_letters":
        return True
    about = durable.removeprefix("relay__")
    return stream == RELAY_ADVISORIES.name and (
        f"__{context}__" in about or about.startswith(tuple(f"{name}__" for name in left))
    )


def _floor(info: ConsumerInfo, last: int) -> int:
    """Up to where a consumer has read. Its floor does not move over messages that it does not get."""
    return last if not _waits(info) else info.ack_floor.stream_seq if info.ack_floor else 0


def _waits(info: ConsumerInfo) -> int:
    return (info.num_pending or 0) + (info.num_ack_pending or 0)


async def _streams(js: JetStreamContext) -> list[StreamInfo]:
    found = list[StreamInfo]()
    while page := await js.streams_info(offset=len(found)):
        found += page
        if len(page) < _PAGE:
            break
    return found


async def _consumers(js: JetStreamContext, stream: str) -> list[ConsumerInfo]:
    found = list[ConsumerInfo]()
    while page := await js.consumers_info(stream, offset=len(found)):
        found += page
        if len(page) < _PAGE:
            break
    return found
