"""What the two NATS users of a configuration may publish and subscribe to: the fleet, and the admin of streams.

A user who may publish to all of ``$JS.ACK`` can acknowledge messages that others have not handled, and so lose
them. A user who may publish to all of ``$JS.API`` can delete every stream. So each subject names its stream and
consumer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from relay.domain.querying import presence_subject
from relay.domain.topology import ConsumerSpec, StreamSpec


@dataclass(frozen=True, slots=True)
class Permissions:
    """The allowed subjects, each once. All others are forbidden.

    ``responses``: whether it may answer what it receives, whatever the reply subject.
    """

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    responses: bool = False


def of_fleet(
    streams: Sequence[StreamSpec],
    consumers: Sequence[ConsumerSpec],
    audited: Collection[str],
    inbox: str,
    queries: Collection[str] = (),
    letters: Collection[str] = (),
    asks: Collection[str] = (),
) -> Permissions:
    """For scheduler, workers and operators' commands: publish, pull, acknowledge, audit, answer ``queries``.

    An audit reads an ``audited`` stream through a consumer with a new name. So on these streams the fleet may
    make, read and remove any consumer. ``inbox``: the subject prefix for answers. ``letters``: the streams of dead
    letters. Of these it reads single messages, to compare them. ``asks``: the queries of other services.
    """
    subjects = [subject for stream in streams for subject in stream.subjects if not subject.startswith("$")]
    subjects += ["$JS.API.INFO", *(f"$JS.API.STREAM.INFO.{stream.name}" for stream in streams)]
    for name in audited:
        subjects += (
            f"$JS.API.STREAM.INFO.{name}",
            f"$JS.API.STREAM.MSG.GET.{name}",
            f"$JS.API.CONSUMER.CREATE.{name}.>",
            f"$JS.API.CONSUMER.MSG.NEXT.{name}.*",
            f"$JS.API.CONSUMER.DELETE.{name}.*",
        )
    subjects += [f"$JS.API.STREAM.MSG.GET.{name}" for name in letters]
    for consumer in consumers:
        place = f"{consumer.stream}.{consumer.durable}"
        subjects += (
            f"$JS.API.CONSUMER.INFO.{place}",
            f"$JS.API.CONSUMER.MSG.NEXT.{place}",
            f"$JS.ACK.{place}.>",
            f"$JS.ACK.*.*.{place}.>",  # newer servers put domain and account first
        )
    if queries:
        subjects.append("$JS.API.STREAM.NAMES")  # relay health asks which stream takes them
    subjects += [it for subject in asks for it in (subject, presence_subject(subject))]
    heard = [it for subject in queries for it in (subject, presence_subject(subject))]
    return Permissions(tuple(dict.fromkeys(subjects)), (f"{inbox}.>", *heard), bool(queries))


def of_admin(streams: Sequence[StreamSpec], consumers: Sequence[ConsumerSpec], inbox: str) -> Permissions:
    """For ``relay streams``: make, change and view what is configured; delete nothing, read no message."""
    subjects = ["$JS.API.INFO"]
    for stream in streams:
        subjects += (
            f"$JS.API.STREAM.INFO.{stream.name}",
            f"$JS.API.STREAM.CREATE.{stream.name}",
            f"$JS.API.STREAM.UPDATE.{stream.name}",
        )
    for consumer in consumers:
        place = f"{consumer.stream}.{consumer.durable}"
        subjects += (
            f"$JS.API.STREAM.INFO.{consumer.stream}",
            f"$JS.API.CONSUMER.INFO.{place}",
            f"$JS.API.CONSUMER.CREATE.{place}.>",
            f"$JS.API.CONSUMER.CREATE.{place}",
        )
    return Permissions(tuple(dict.fromkeys(subjects)), (f"{inbox}.>",))
