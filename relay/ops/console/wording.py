"""Values in words: how templates show times, numbers, states and reasons."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from relay.domain.alarm_rules import RULES
from relay.domain.durations import ago, duration, size
from relay.domain.foreign_json import pretty_json
from relay.domain.reasons import CODES, FAMILIES, cause
from relay.domain.tones import tone
from relay.ops.kinds.model import Kind

#: From which age on a row that waits is late, by its kind: as the rules of alarms.
LATE: Final = {
    "events": RULES["JetrelayOutboxStalled"].over,
    "inbox": RULES["JetrelayInboxStalled"].over,
    "tasks": RULES["JetrelayTasksStalled"].over,
}
_WAITS: Final = frozenset({"waiting", "failing", "pending", "delivered"})
_MEANINGS: Final = {code.name: code.meaning for code in CODES}
#: Ids of more characters are shortened in tables.
_LONG: Final = 20
#: So many characters of a text are in a cell of a list.
_LINE: Final = 300
#: What the classes of dead letters mean, and what helps.
CLASSES: Final = {
    "unconfirmed": "A letter says so, but no message died. Find out who sent it, then discard this one.",
    "poison": "It is bad: the handler answered 422, or nobody can read it. Mend that, then requeue or resolve.",
    "deterministic": "A business rule refuses it. Mend the handler or the data, then requeue.",
    "exhausted": "Every attempt failed. When what was down is back, requeue.",
}


def number(value: float | None) -> str:
    """A count with separators: ``12,345``; rates below ten with one digit behind the point."""
    if value is None:
        return "?"
    if value < 10 and value != round(value):
        return f"{value:.1f}"
    return f"{value:,.0f}"


def absolute(at: datetime) -> str:
    """A time to the second, in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def short(text: object) -> str:
    """A long id as its beginning and end: ``0192d1a0…4372``. Ids that begin with one time differ at the end."""
    shown = str(text)
    return shown if len(shown) <= _LONG else f"{shown[:8]}…{shown[-4:]}"


def brief(text: object) -> str:
    """The beginning of a text, as long as a line of a table is."""
    shown = str(text)
    return shown if len(shown) <= _LINE else f"{shown[:_LINE]}…"


def late(row: Mapping[str, Any], kind: Kind) -> bool:
    """Whether a row waits for longer than it should. One that is not due yet is not late."""
    since, due = row.get(kind.aged), row.get("available_at")
    if kind.path not in LATE or row.get("status") not in _WAITS or since is None:
        return False
    begins = max(since, due) if due is not None and row.get("status") in ("waiting", "pending") else since
    return bool((datetime.now(UTC) - begins).total_seconds() > LATE[kind.path])


def gap(seconds: float) -> str:
    """The time between two events: ``40 ms after``; or ``before``, if the clocks of two servers differ."""
    return f"{duration(abs(seconds))} {'after' if seconds >= 0 else 'before'}"


def meaning(code: str | None) -> str:
    """What the code of a reason means."""
    if not code:
        return ""
    if code.startswith("status_"):
        return f"the handler answered with HTTP status {code[7:]}"
    if code.startswith("raised_"):
        return f"the function raised {code[7:]}"
    return _MEANINGS.get(code) or FAMILIES.get(code, "")


def plural(count: int, noun: str) -> str:
    """``1 event``, ``2 events``, ``3 batches``, ``4 duties``."""
    if count == 1:
        return f"1 {noun}"
    head, _, last = noun.rpartition(" ")
    if last.endswith("y") and last[-2:-1] not in "aeiou":
        last = f"{last[:-1]}ies"
    else:
        last += "es" if last.endswith(("s", "ch", "sh")) else "s"
    return f"{number(count)} {f'{head} {last}'.strip()}"


def pretty(text: str | None) -> str:
    """JSON in lines; other text as it is."""
    return pretty_json(text or "")


def filters() -> dict[str, Any]:
    """The names that templates use for these functions."""
    functions = (
        tone,
        number,
        duration,
        ago,
        absolute,
        size,
        meaning,
        plural,
        pretty,
        short,
        brief,
        cause,
        gap,
        late,
    )
    return {it.__name__: it for it in functions}
