"""The life of a message: what happened to it and because of it, as a tree of steps. `relay explain` draws it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from relay.domain.errors import RelayError
from relay.domain.identity import Identity
from relay.domain.time_axis import Stretch

#: A stream and a sequence that PostgreSQL can hold, and the number of an incident.
_PLACE: Final = re.compile(r"([A-Za-z0-9_-]{1,255}):([0-9]{1,18})")
_NUMBER: Final = re.compile(r"[0-9]{1,18}")


class StepKind(StrEnum):
    """What a step is about. A ``message`` is one delivery: a row of an inbox. An ``action`` is an operator's."""

    RUN = "run"
    EVENT = "event"
    PUBLICATION = "publication"
    MESSAGE = "message"
    INCIDENT = "incident"
    TASK = "task"
    ACTION = "action"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step, and its result.

    ``id``: of a publication it is ``stream:sequence``. ``name``: type, subscription or action. ``at``: when it
    began, ``ended`` when it ended. ``after``: how long after the step above it began, and ``took`` how long it
    took, in seconds; None where a time is not known. ``error``: the last one, or the reason of a dead letter.
    ``trace_id``: the trace that its ``traceparent`` names, 32 hex digits; None if it carries none that is valid.
    ``archived``: it was found in the archive. ``spans``: when it waited, worked and backed off.
    No step holds a payload.
    """

    kind: StepKind
    context: str
    id: str
    name: str
    state: str
    at: datetime | None
    ended: datetime | None = None
    attempts: int | None = None
    error: str | None = None
    trace_id: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    archived: bool = False
    spans: Sequence[Stretch] = ()
    after: float | None = None
    took: float | None = None
    children: Sequence[Step] = ()

    def under(self, above: Step | None) -> Step:
        """Return the step with durations, as a step that follows ``above``, and with its children in order."""
        after = None if above is None else _seconds(above.at, self.at)
        timed = replace(self, after=after, took=_seconds(self.at, self.ended))
        children = sorted(self.children, key=lambda it: (it.at is None, it.at and it.at.timestamp()))
        return replace(timed, children=tuple(child.under(timed) for child in children))


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeSearch:
    """What rows are looked for, in every context.

    ``texts``: ids as people see them. ``causes``: ids whose chain has no correlation. What they caused is found by
    its causation id. ``place``: a stream and a sequence. ``incident``: the number of a dead letter.
    """

    ids: frozenset[UUID] = frozenset()
    correlations: frozenset[UUID] = frozenset()
    texts: frozenset[str] = frozenset()
    causes: frozenset[UUID] = frozenset()
    place: tuple[str, int] | None = None
    incident: int | None = None

    @classmethod
    def of(cls, text: str) -> LifeSearch:
        """Read what an operator has asked for: any id, ``stream:sequence``, or the number of an incident."""
        identity = Identity.of(text)
        one = frozenset([identity.uuid])
        wanted = cls(ids=one, correlations=one, texts=frozenset([text, str(identity.uuid)]))
        if place := _PLACE.fullmatch(text):
            return replace(wanted, place=(place[1], int(place[2])))
        return replace(wanted, incident=int(text)) if _NUMBER.fullmatch(text) else wanted

    def and_(self, **more: Iterable[Any]) -> LifeSearch:
        """Return this with more ids, correlations, texts or causes."""
        return replace(self, **{name: getattr(self, name) | frozenset(values) for name, values in more.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What is known of an id. ``unread``: why a context or its archive could not be read, by its name.

    ``cut``: there is more than is shown.
    """

    asked: str
    steps: Sequence[Step]
    unread: Mapping[str, str]
    cut: bool = False


class UnknownId(RelayError):
    """No context knows an event, message, task, incident or correlation of this id."""

    code = "UNKNOWN_ID"


def _seconds(begin: datetime | None, end: datetime | None) -> float | None:
    return None if begin is None or end is None else round((end - begin).total_seconds(), 6)
