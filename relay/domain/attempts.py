"""The attempts at a row, as values: when, where, how long, how it ended, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from relay.domain.claim_tokens import read_token
from relay.domain.disclosure import clean, stack_of
from relay.domain.moments import UNREADABLE, before, moment

#: A row keeps its last attempts only. `schema/attempts.sql` has the same number.
KEPT: Final = 20
#: Of the error of an attempt so much is kept: characters of the reason, and lines of the stack.
_REASON: Final = 500
_LINES: Final = 6
_LINE: Final = 160
#: So many attempts without a note are told, at most.
_MAX_SILENT: Final = 3
#: After these no attempt of the round follows.
_FINAL: Final = ("processed", "completed", "published", "dead")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt. ``round``: how often the row was requeued before. ``began``: None if nobody knows.

    ``outcome``: failed, put off (it spends no attempt), dead, processed, running; or lost: its worker died or was
    cut off. ``next_at``: when the next one was due. ``worker``: host and process.
    """

    number: int
    outcome: str
    round: int = 0
    began: datetime | None = None
    ended: datetime | None = None
    seconds: float | None = None
    worker: str = ""
    release: str = ""
    error: str = ""
    stack: Sequence[str] = ()
    next_at: datetime | None = None


def noted(outcome: str, error: str, seconds: float | None, worker: str, release: str) -> dict[str, Any]:
    """What a worker writes about an attempt; the statement adds the number, the time and the claim. Bounded."""
    reason, stack = stack_of(error)
    found = {
        "outcome": outcome,
        "error": clean(reason, _REASON),
        "stack": [clean(line, _LINE) for line in stack[:_LINES]],
        "took": None if seconds is None else round(seconds, 4),
        "worker": clean(worker, _LINE),
        "release": clean(release, 40),
    }
    return {name: value for name, value in found.items() if value not in (None, "", [])}


def read_attempts(log: object) -> list[Attempt]:
    """Read the notes of a row, the oldest first. What cannot be read is left out: any program may write there."""
    entries = log if isinstance(log, list) else []
    return [it for entry in entries[-KEPT:] if (it := _read(entry)) is not None]


def _read(entry: object) -> Attempt | None:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("n"), int):
        return None
    ended, seconds = _time(entry.get("at")), _seconds(entry.get("took"))
    claimed = _claimed(entry.get("claim"))
    if ended is not None and seconds is not None:
        began: datetime | None = before(ended, seconds)
    else:
        began = claimed
        seconds = (ended - began).total_seconds() if began and ended and ended >= began else None
    stack = entry.get("stack")
    return Attempt(
        number=entry["n"],
        outcome=_text(entry, "outcome") or "failed",
        round=entry["round"] if isinstance(entry.get("round"), int) else 0,
        began=began,
        ended=ended,
        seconds=seconds,
        worker=_text(entry, "worker"),
        release=_text(entry, "release"),
        error=_text(entry, "error"),
        stack=[clean(str(it), _LINE) for it in stack[:_LINES]] if isinstance(stack, list) else (),
        next_at=_time(entry.get("next")),
    )


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    return clean(value, _REASON) if isinstance(value, str) else ""


def _time(value: object) -> datetime | None:
    found = moment(value)
    return None if found is UNREADABLE else found


def _seconds(value: object) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 10**8
    return float(value) if usable else None  # type: ignore[arg-type]


def _claimed(value: object) -> datetime | None:
    try:
        found = read_token(UUID(str(value)))
    except ValueError:
        return None
    return None if found is None else found.at


def whole(
    attempts: Sequence[Attempt],
    *,
    counted: int,
    rounds: int = 0,
    ended: datetime | None = None,
    outcome: str = "",
    running: Attempt | None = None,
) -> list[Attempt]:
    """The attempts of a row, with those that left no note.

    A success at the first attempt writes none, and a worker that dies cannot. ``counted``, ``rounds``: the
    attempts since the last requeue, and how often it was requeued. ``ended``, ``outcome``: of a finished row.
    ``running``: the attempt that runs.
    """
    found = list(_with_lost(attempts))
    last = found[-1] if found else None
    known = last.number if last is not None and last.round == rounds else 0
    closed = last is not None and last.round == rounds and last.outcome in _FINAL
    open_ = running is not None or (ended is not None and not closed)
    silent = counted - known - (1 if open_ else 0)
    found += [Attempt(number=known + it, outcome="lost", round=rounds) for it in _few(silent)] if known else []
    if running is not None:
        found.append(running)
    elif ended is not None and not closed:
        found.append(Attempt(number=max(counted, 1), outcome=outcome, round=rounds, ended=ended))
    return found


def _with_lost(attempts: Sequence[Attempt]) -> Iterator[Attempt]:
    """Yield attempts, and those between two of a round that left no note."""
    before: Attempt | None = None
    for it in attempts:
        if before is not None and before.round == it.round:
            for place in _few(it.number - before.number - 1):
                yield Attempt(number=before.number + place, outcome="lost", round=it.round)
        before = it
        yield it


def _few(count: int) -> range:
    return range(1, min(count, _MAX_SILENT) + 1)
