"""Replays of old messages into the inbox of one subscription, as values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from relay.domain.errors import RelayError


class ReplaySource(StrEnum):
    """Where a replay reads: the archive, then the stream, and the outbox for what the stream dropped."""

    ARCHIVE = "archive"
    STREAM = "stream"


class ReplayRunning(RelayError):
    """A replay of this subscription is running."""

    code = "REPLAY_RUNNING"


class UnknownReplay(RelayError):
    """No replay of this number is running."""

    code = "UNKNOWN_REPLAY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A replay that a worker has claimed under a ``token``.

    ``again``: messages that were processed before ``asked_at`` are handled again. ``rate``: messages a second.
    ``position``, ``part``, ``batch``: see ``schema/inbox_replays.sql``. ``last_position``: where the stream ended
    at first.
    """

    id: int
    token: UUID
    subscription: str
    since: datetime | None
    until: datetime
    key: str | None
    event_type: str | None
    again: bool
    rate: int
    asked_at: datetime
    source: ReplaySource
    position: int
    part: int
    batch: int
    last_position: int | None

    @property
    def place(self) -> ReplayPlace:
        """How far it has come."""
        return ReplayPlace(source=self.source, position=self.position, part=self.part, batch=self.batch)

    def in_time(self, at: datetime | None) -> bool:
        """Whether a message that the stream stored ``at`` this time is asked for."""
        return at is None or ((self.since is None or at >= self.since) and at < self.until)

    def fits(self, event_type: str, key: str | None) -> bool:
        """Whether a message of this type and key is asked for."""
        return self.event_type in (None, event_type) and self.key in (None, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlace:
    """How far a replay has come. ``batch``: the last whole one of the archive, with ``part`` of the next."""

    source: ReplaySource
    position: int
    part: int = 0
    batch: int = 0
    last_position: int | None = None

    def in_archive(self, batch: int, part: int = 0) -> ReplayPlace:
        """The place after so much of the archive."""
        position = batch if self.source is ReplaySource.ARCHIVE else self.position
        return replace(self, position=position, batch=batch, part=part)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCounts:
    """What became of messages: new in the inbox, handled again, left as they are."""

    added: int = 0
    repeated: int = 0
    skipped: int = 0
