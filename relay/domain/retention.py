"""What is kept how long: every table, kind of stream, part of the archive and kind of key in Redis, said once.

`relay retention`, the HTTP API and the console show these rules beside what is there. A test holds that no table
and no kind of stream is without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from relay.domain.archive import ArchiveKind
from relay.domain.history import HOURS_KEPT, MINUTES_KEPT
from relay.domain.members import FORGOTTEN_AFTER_S
from relay.domain.policies import KEEP
from relay.domain.topology import RELAY_ADVISORIES

#: How long it is kept which rows were counted for an act, and how long Dramatiq keeps a dead job.
SELECTIONS_KEPT: Final = timedelta(days=1)
DEAD_JOBS_KEPT: Final = timedelta(days=7)


class KeptIn(StrEnum):
    """Where it is kept."""

    TABLE = "table"
    STREAM = "stream"
    ARCHIVE = "archive"
    REDIS = "redis"


class Ends(StrEnum):
    """What takes away what is kept. ``replaced``: there is one of each, so it does not grow."""

    TIME = "time"
    ACT = "act"
    REPLACED = "replaced"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class KeepingRule:
    """How long something is kept. ``text``: for people. ``keeps``: the fixed time.

    ``setting``: the key that says it instead; without a value it is kept without an end.
    """

    place: KeptIn
    name: str
    ends: Ends
    text: str
    keeps: timedelta | None = None
    setting: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPart:
    """What a rule holds for now. ``name``: of the table or stream. ``keeps``: None for what has no time.

    ``rows`` and ``size``, in bytes: None if nobody knows; rows of tables are estimated. ``oldest_at``: since when
    the oldest could go. ``shared``: all contexts have it together.
    """

    rule: KeepingRule
    name: str
    keeps: timedelta | None
    rows: int | None = None
    size: int | None = None
    oldest_at: datetime | None = None
    shared: bool = False

    @property
    def ends(self) -> Ends:
        """What takes it away, by the values of the settings."""
        return Ends.NEVER if self.rule.ends is Ends.TIME and self.keeps is None else self.rule.ends

    @property
    def next_at(self) -> datetime | None:
        """When the next of it goes; a time that is past means: with the next run."""
        if self.oldest_at is None or self.keeps is None or self.ends is not Ends.TIME:
            return None
        try:
            return self.oldest_at + self.keeps
        except OverflowError:
            return None

    def row(self) -> dict[str, Any]:
        """The same for lists and programs."""
        return {
            "place": self.rule.place,
            "name": self.name,
            "ends": self.ends,
            "keeps": None if self.keeps is None else int(self.keeps.total_seconds()),
            "setting": self.rule.setting or None,
            "rows": self.rows,
            "size": self.size,
            "oldest_at": self.oldest_at,
            "next_at": self.next_at,
            "rule": self.rule.text,
        }


def _tables(ends: Ends, *rules: tuple[str, str], **how: Any) -> Iterable[KeepingRule]:
    return (KeepingRule(KeptIn.TABLE, name, ends, text, **how) for name, text in rules)


_RULES: Final = (
    *_tables(
        Ends.TIME,
        ("outbox_events", "Published, discarded and expired events go to the archive; all others stay."),
        ("inbox_messages", "Handled, expired and decided messages go to the archive; all others stay."),
        ("task_outbox", "Ended tasks go to the archive; all others stay."),
        setting="archive.after",
    ),
    *_tables(
        Ends.TIME,
        ("archived_messages", "An id goes with its batch; until then a repeat is known."),
        setting="archive.keep",
    ),
    *_tables(
        Ends.TIME,
        ("processed_events", "Deleted; then a repeat is handled again."),
        ("alerts", "Deleted, also if no webhook took it."),
        ("scheduled_runs", "Deleted, but the last of each job."),
        ("scheduled_jobs", "Deleted so long after the application removed it."),
        keeps=KEEP,
    ),
    *_tables(
        Ends.TIME,
        ("history", f"Hours are deleted so old, minutes after {MINUTES_KEPT // timedelta(hours=1)} hours."),
        keeps=HOURS_KEPT,
    ),
    *_tables(Ends.TIME, ("selections", "Deleted with the next that is made."), keeps=SELECTIONS_KEPT),
    *_tables(
        Ends.ACT,
        ("parked_keys", "Until the key is released."),
        ("controls", "Until it is taken back."),
        ("alert_conditions", "While the condition lasts."),
        ("orphaned_events", "Until it is adopted; one that was not reported, also until the stream loses it."),
        ("history_tallies", "Until the leader adds it to the history, within minutes."),
    ),
    *_tables(
        Ends.REPLACED,
        ("inbox_watermarks", "One of each ordered subscription and stream."),
        ("handler_circuits", "One of each subscription."),
        ("corrections", "One of each subscription."),
        ("task_rates", "One of each limit of rate; those of keys go when they hold nothing back."),
        ("archived_events", "One of each stream."),
        ("relay_wakeup", "One."),
        ("scheduler_lease", "One."),
        ("relay_alembic_version", "One."),
    ),
    *_tables(
        Ends.NEVER,
        ("dead_letters", "For audits."),
        ("audit_log", "For audits."),
        ("subject_keys", "`relay forget` destroys a key; that there was one stays."),
        ("erased_messages", "Which messages a redaction took from a stream: nothing brings them back."),
        ("archive_batches", "The record of each batch, also of a deleted one."),
        ("inbox_replays", "One of each replay."),
    ),
    KeepingRule(KeptIn.STREAM, "events", Ends.TIME, "JetStream removes a message.", setting="stream.max_age"),
    KeepingRule(KeptIn.STREAM, "dead letters", Ends.TIME, "JetStream removes a letter.", setting="dlq.max_age"),
    KeepingRule(
        KeptIn.STREAM, "advisories", Ends.TIME, "JetStream removes an advisory.", keeps=RELAY_ADVISORIES.max_age
    ),
    *(
        KeepingRule(
            KeptIn.ARCHIVE,
            kind,
            Ends.TIME,
            "A batch is deleted so long after its newest row ended.",
            setting="archive.keep",
        )
        for kind in ArchiveKind
    ),
    KeepingRule(
        KeptIn.REDIS, "jobs", Ends.ACT, "Until the job is done. If Redis loses it, the row sends another."
    ),
    KeepingRule(KeptIn.REDIS, "dead jobs", Ends.TIME, "Dramatiq deletes it. The row stays.", keeps=DEAD_JOBS_KEPT),
    KeepingRule(
        KeptIn.REDIS,
        "members",
        Ends.TIME,
        "A process that is silent is forgotten.",
        timedelta(seconds=FORGOTTEN_AFTER_S),
    ),
    KeepingRule(KeptIn.REDIS, "gates", Ends.REPLACED, "One of each duty; it expires within minutes."),
)
#: Every rule, by its place and its name.
RULES: Final[Mapping[tuple[KeptIn, str], KeepingRule]] = {(it.place, it.name): it for it in _RULES}


def rules_of(place: KeptIn) -> Mapping[str, KeepingRule]:
    """The rules of a place, by their names, in the order in which they are shown."""
    return {name: rule for (at, name), rule in RULES.items() if at is place}
