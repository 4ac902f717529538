"""The dense overview: one row for each context, what is down or slow first, with lines of its last hour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from relay.domain.alarms import Alarm, AlarmsNow, AlarmState, Urgency
from relay.domain.durations import duration
from relay.domain.history import LastHour, Of
from relay.ops.console.charts import parts_of
from relay.ops.console.overview import ContextFigures
from relay.ops.console.wording import LATE

View = Literal["dense", "cards"]
#: With more contexts than this, the overview has a row for each unless somebody asks for cards.
CARDS: Final = 4
#: What is bad comes first: a context that does not answer, then by its worst alarm.
_DOWN, _PAGE, _TICKET, _LATER, _FINE = range(5)
_TONES: Final = ("down", "page", "ticket", "pending", "healthy")


@dataclass(frozen=True, slots=True)
class Spark:
    """A line of the last hour, between its gaps. ``last``: its value now; ``most``: the highest. None: unknown."""

    parts: Sequence[str]
    last: float | None
    most: float


@dataclass(frozen=True, slots=True)
class DenseRow:
    """A context in one row. ``state``: what its first cell says; ``says``: what is wrong, in words.

    ``more``: so many alarms besides. ``sparks``: events, messages and tasks a second, and what failed.
    """

    figures: ContextFigures
    state: str
    says: str
    more: int
    sparks: Sequence[Spark]
    rank: tuple[object, ...]

    def late(self, kind: str, seconds: float) -> bool:
        """Whether what waits is older than the rule of alarms allows."""
        return seconds > LATE[kind]


def dense_rows(found: Iterable[ContextFigures], alarms: AlarmsNow | None) -> Sequence[DenseRow]:
    """All contexts, the worst first."""
    by_context: dict[str, list[Alarm]] = {}
    for it in alarms.alarms if alarms else ():
        by_context.setdefault(it.context, []).append(it)
    unread = alarms.unread if alarms else {}
    rows = [_row(it, by_context.get(it.name, ()), unread.get(it.name)) for it in found]
    return sorted(rows, key=lambda it: it.rank)


def _row(found: ContextFigures, alarms: Sequence[Alarm], unread: str | None) -> DenseRow:
    worst = next(iter(alarms), None)
    rank, says = _judged(found, worst, unread)
    trouble = found.hour.failed[-1] if found.hour and found.hour.failed else None
    since = 0.0 if worst is None else worst.since.timestamp()
    return DenseRow(
        figures=found,
        state="asked" if (found.late or found.silent is not None) and rank == _FINE else _TONES[rank],
        says=says,
        more=max(0, len(alarms) - (rank != _DOWN)),
        sparks=_sparks(found.hour),
        rank=(rank, -len(alarms), since, -(trouble or 0), -found.letters, found.name),
    )


def _judged(found: ContextFigures, worst: Alarm | None, unread: str | None) -> tuple[int, str]:
    """How bad it is, and what is wrong, in words."""
    if found.error is not None:
        return _DOWN, f"{found.error.code}: {found.error.message}"
    if found.silent is not None and found.overdue:
        return _DOWN, f"does not answer; these figures are {duration(found.silent)} old"
    if unread is not None and (found.outbox is None or found.silent is not None):
        return _DOWN, f"does not answer: {unread}"
    if worst is not None:
        text = worst.text.removeprefix(found.name).lstrip(":, ")
        pages = worst.rule.urgency is Urgency.PAGE
        return _LATER if worst.state is not AlarmState.FIRING else _PAGE if pages else _TICKET, text
    if found.silent is not None:
        return _FINE, f"these figures are {duration(found.silent)} old"
    return _FINE, "has not answered yet" if found.late else ""


def _sparks(hour: LastHour | None) -> Sequence[Spark]:
    if hour is None:
        return [_spark(())] * 4
    return [*(_spark(hour.rates.get(of, ())) for of in (Of.OUTBOX, Of.SUBSCRIPTION, Of.TASK)), _spark(hour.failed)]


def _spark(values: Sequence[float | None]) -> Spark:
    most = max((it for it in values if it is not None), default=0.0)
    last = next((it for it in values[::-1] if it is not None), None)
    return Spark(parts_of(values, most) if most else (), last, most)
