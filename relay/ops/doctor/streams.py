"""Checks of nats-server, its streams and consumers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from relay.adapters.jetstream.inspection import BrokerState, OtherConsumer, StreamState
from relay.adapters.jetstream.topology import Difference
from relay.domain.findings import Finding, error, unknown, warning
from relay.domain.limits import WIRE_RESERVE_BYTES
from relay.domain.topology import RELAY_ADVISORIES, covers, subjects_overlap
from relay.settings import ContextSettings, Settings, SubscriptionSettings

#: The first safe version. In older ones recovery after a crash may drop acknowledged messages.
SAFE: Final = (2, 14)
_SERVER: Final = "nats"
_ENSURE: Final = "run: relay streams ensure"
_ANEW: Final = "to change this, delete it and make it again; its messages, or its progress, would be lost"
_START: Final = "docs/how-to/streams.md"
#: Differences that have checks of their own.
_TOLD: Final = frozenset({"storage", "persist_mode", "discard"})
#: What nats-server takes by default, in bytes.
_USUAL_PAYLOAD: Final = 1024**2
#: From this part of a limit on, a stream is called full. Then it refuses events, and they wait in the outbox.
_FULL: Final = 0.9
#: A consumer of others that was not read for so long, in seconds, and for which messages wait.
_ABANDONED_S: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class Broker:
    """What the server said, and the settings of the contexts to compare it with."""

    state: BrokerState
    contexts: Mapping[str, ContextSettings]

    @classmethod
    def of(cls, state: BrokerState, settings: Settings) -> Broker:
        """Take the contexts of the configuration."""
        return cls(state, settings.contexts)

    @property
    def streams(self) -> Iterator[StreamState]:
        """The streams that exist."""
        return (stream for stream in self.state.streams.values() if stream is not None)

    @property
    def subscriptions(self) -> Iterator[SubscriptionSettings]:
        """All subscriptions."""
        return (sub for context in self.contexts.values() for sub in context.subscriptions.values())


def version(broker: Broker) -> Iterator[Finding]:
    """The server keeps what it has acknowledged when it crashes."""
    if broker.state.version[:2] < SAFE:
        number, safe = ".".join(map(str, broker.state.version)), ".".join(map(str, SAFE))
        yield warning(
            "BROKER_OLD",
            _SERVER,
            f"nats-server {number} may lose acknowledged messages in a crash",
            f"run {safe} or newer",
        )


def disk(broker: Broker) -> Iterator[Finding]:
    """The server writes to the disk before it acknowledges."""
    if broker.state.sync_interval is None:
        yield unknown(
            "SYNC_UNKNOWN",
            _SERVER,
            f"sync_interval cannot be checked: {broker.state.unseen}",
            "set nats.monitor to the server's HTTP address",
        )
    elif broker.state.sync_interval > 0:
        yield warning(
            "SYNC_LATE",
            _SERVER,
            f"sync_interval is {broker.state.sync_interval:g} s: a power cut loses what was acknowledged since",
            "set sync_interval: always",
        )


def presence(broker: Broker) -> Iterator[Finding]:
    """Every stream and consumer is there."""
    for name, stream in broker.state.streams.items():
        if stream is None:
            yield error("STREAM_MISSING", f"stream {name}", "does not exist", _ENSURE)
    for name, consumer in broker.state.consumers.items():
        if consumer is None:
            yield error("CONSUMER_MISSING", f"consumer {name}", "does not exist", _ENSURE)
        elif consumer.paused:
            yield error("CONSUMER_PAUSED", f"consumer {name}", "is paused and delivers nothing", "resume it")


def subjects(broker: Broker) -> Iterator[Finding]:
    """A stream takes the subjects that relay.toml says. Events of others are refused."""
    for context in broker.contexts.values():
        for settings in (*context.event_streams, context.dlq):
            stream = broker.state.streams.get(settings.name)
            lacking = [] if stream is None else [it for it in settings.subjects if not _taken(it, stream.subjects)]
            if lacking:
                text = f"it does not take {', '.join(lacking)}: its subjects were changed"
                yield error("SUBJECTS_MISSING", f"stream {settings.name}", text, _ENSURE)


def _taken(subject: str, by: Iterable[str]) -> bool:
    return any(covers(it, subject) for it in by)


def keeping(broker: Broker) -> Iterator[Finding]:
    """A stream keeps what it has acknowledged."""
    for stream in broker.streams:
        subject = f"stream {stream.name}"
        if stream.memory:
            yield warning("STREAM_IN_MEMORY", subject, f"{subject} is in memory: a restart loses it", _ANEW)
        if stream.early:
            text = f"{subject} acknowledges before it writes (persist_mode async)"
            yield warning("STREAM_EARLY", subject, text, _ANEW)
        if stream.drops:
            text = f"{subject} drops its oldest messages when full (discard old)"
            yield warning("STREAM_DROPS", subject, text, _ENSURE)
        if stream.alone:
            text = f"{subject} has one replica in a cluster: it is unavailable, or lost, together with its server"
            yield warning("STREAM_ALONE", subject, text, "set replicas = 3, and " + _ENSURE)


def answers(broker: Broker) -> Iterator[Finding]:
    """No stream confirms a query in the place of its answer."""
    for subject, name in broker.state.answering:
        text = f"stream {name} answers queries of {subject} itself"
        yield warning("STREAM_ANSWERS", f"stream {name}", text, "set no_ack = true")


def space(broker: Broker) -> Iterator[Finding]:
    """A stream takes messages, and has room for more."""
    for stream in broker.streams:
        subject = f"stream {stream.name}"
        if stream.sealed:
            text = f"{subject} is sealed: it takes no message any more"
            yield error("STREAM_REFUSES", subject, text, "it cannot be unsealed: let relay.toml name a new stream")
        elif stream.refuses:
            text = f"{subject} is full: it refuses messages, and they wait"
            yield error("STREAM_REFUSES", subject, text, "raise its limits or shorten max_age")
        elif stream.full >= _FULL:
            text = f"{subject} is {stream.full:.0%} full, then events wait"
            yield warning("STREAM_FULL", subject, text, "raise its limits or shorten max_age")
    if broker.state.used >= _FULL:
        text = f"{broker.state.used:.0%} of the storage of the account is used up"
        yield (error if broker.state.used >= 1 else warning)("STORAGE_FULL", _SERVER, text, "raise its limit")


def coverage(broker: Broker) -> Iterator[Finding]:
    """A subscription reads subjects that its stream has."""
    for sub in broker.subscriptions:
        stream = broker.state.streams.get(sub.stream)
        if stream is None or _taken(sub.filter_subject, stream.subjects):
            continue
        some = any(subjects_overlap(subject, sub.filter_subject) for subject in stream.subjects)
        what = "takes only a part of" if some else "takes nothing of"
        yield (warning if some else error)(
            "FILTER_OUTSIDE",
            _subscription(sub),
            f"{sub.stream} {what} {sub.filter_subject}: its subjects are {', '.join(stream.subjects) or 'none'}",
            "correct filter_subject, or the subjects of the stream",
        )


# --- a closer look ---


def differences(broker: Broker) -> Iterator[Finding]:
    """Streams and consumers are as relay.toml says."""
    for stream in broker.streams:
        yield from _differing(f"stream {stream.name}", [it for it in stream.differences if it.field not in _TOLD])
    for consumer in broker.state.consumers.values():
        if consumer is not None:
            yield from _differing(f"consumer {consumer.name}", consumer.differences)


def _differing(subject: str, found: Iterable[Difference]) -> Iterator[Finding]:
    for it in found:
        if not it.missing:
            text = f"{it.field} is {it.actual}, should be {it.expected}"
            yield warning("TOPOLOGY_DIFFERS", subject, text, _remedy(it))


def _remedy(it: Difference) -> str:
    if it.field == "start_at":
        return f'it has no effect on an existing consumer: set start_at = "{it.actual}", or see {_START}'
    return _ENSURE if it.changeable else _ANEW


def duplicate_window(broker: Broker) -> Iterator[Finding]:
    """A stream recognises an event that is published again after a back-off."""
    for context in broker.contexts.values():
        span = (context.publish.backoff_max + 2 * context.publish.ack_timeout).total_seconds()
        for settings in context.event_streams:
            stream = broker.state.streams.get(settings.name)
            if stream is not None and stream.duplicate_window <= span:
                yield warning(
                    "WINDOW_SHORT",
                    f"stream {stream.name}",
                    f"its duplicate window is {stream.duplicate_window:g} s, and {context.name} may repeat after"
                    f" {span:g} s: the event is then stored twice",
                    "set a longer duplicate_window, or a shorter publish.backoff_max",
                )


def left_behind(broker: Broker) -> Iterator[Finding]:
    """No consumer was left behind by a rename of a context, subscription or durable."""
    if broker.state.unlisted:
        text = "the consumers of its streams cannot be listed: one that a rename left behind is not seen"
        yield unknown("CONSUMERS_UNKNOWN", _SERVER, text, "grant it: publish $JS.API.CONSUMER.LIST.*")
    for it in broker.state.others:
        ours = _durable(it).startswith(tuple(f"{name}__" for name in broker.contexts))
        if ours or (it.waiting and it.idle_seconds > _ABANDONED_S):
            text = f"nobody reads it, and relay.toml does not name it; {it.waiting} messages wait for it"
            subject, remedy = f"consumer {it.stream}/{it.durable}", "if a rename left it behind: nats consumer rm"
            yield warning("CONSUMER_LEFT", subject, text, remedy)


def _durable(consumer: OtherConsumer) -> str:
    """The durable of a subscription, also if this consumer reads the advisories about it."""
    if consumer.stream != RELAY_ADVISORIES.name:
        return consumer.durable
    return consumer.durable.removeprefix("relay__").partition("__")[2]


def denials(broker: Broker) -> Iterator[Finding]:
    """An operator may delete what must not be in a stream."""
    for stream in broker.streams:
        if stream.denies:
            text = f"{', '.join(stream.denies)} is set: no message can be removed before its time"
            yield warning("STREAM_DENIES", f"stream {stream.name}", text, _ANEW)


def acknowledgement(broker: Broker) -> Iterator[Finding]:
    """A handler's time ends before JetStream delivers its message again."""
    for sub in broker.subscriptions:
        consumer = broker.state.consumers.get(f"{sub.stream}/{sub.durable}")
        limit = sub.handler_timeout.total_seconds()
        if consumer is not None and sub.settle == "handler" and consumer.ack_wait <= limit:
            yield warning(
                "ACK_WAIT_SHORT",
                _subscription(sub),
                f"ack_wait of its consumer is {consumer.ack_wait:g} s, and a call may take {limit:g} s:"
                " JetStream delivers again while the handler works",
                _ENSURE,
            )


def payload(broker: Broker) -> Iterator[Finding]:
    """The server takes what an application may write."""
    limit = broker.state.max_payload
    if limit < _USUAL_PAYLOAD:
        text = f"max_payload is {limit} bytes, less than the usual {_USUAL_PAYLOAD}: larger events die"
        yield warning("PAYLOAD_SMALL", _SERVER, text, "raise max_payload")
    for stream in broker.streams:
        if 0 <= stream.max_msg_size < limit:
            text = f"takes messages of {stream.max_msg_size} bytes, and the server of {limit}: larger events die"
            yield warning("PAYLOAD_SMALL", f"stream {stream.name}", text, "set max_msg_size of the stream to -1")


def kept_payloads(broker: Broker) -> Iterator[Finding]:
    """What is too large for a stream stays in the outbox, where a limit says so."""
    for context in broker.contexts.values():
        limit = context.payload_limit
        for stream in () if limit is None else context.event_streams:
            state = broker.state.streams.get(stream.name)
            most = broker.state.max_payload
            if state is not None and state.max_msg_size >= 0:
                most = min(most, state.max_msg_size)
            if limit is not None and limit + WIRE_RESERVE_BYTES > most:
                text = f"is {limit} bytes, and {stream.name} takes messages of {most}: events in between die"
                place = f"contexts.{context.name}.payload_limit"
                yield warning("PAYLOAD_LIMIT_HIGH", place, text, "set it lower")


def retention(broker: Broker) -> Iterator[Finding]:
    """The inbox knows a message for as long as its stream may deliver it."""
    for sub in broker.subscriptions:
        after, stream = broker.contexts[sub.context].archive.after, broker.state.streams.get(sub.stream)
        if after is None or stream is None or 0 < stream.max_age < after.total_seconds():
            continue
        age = f"{stream.max_age / 86_400:g} days" if stream.max_age else "for ever"
        yield error(
            "ARCHIVED_TOO_SOON",
            _subscription(sub),
            f"{sub.stream} keeps messages {age}, and rows may leave the inbox after {after.days} days",
            f"set contexts.{sub.context}.archive.after longer; until then these rows stay",
        )


CHECKS: Final = (version, disk, presence, subjects, coverage, keeping, answers, space)
CLOSE_CHECKS: Final = (
    differences,
    left_behind,
    denials,
    duplicate_window,
    acknowledgement,
    payload,
    kept_payloads,
    retention,
)


def _subscription(sub: SubscriptionSettings) -> str:
    return f"subscription {sub.context}.{sub.name}"
