"""Crontab expressions: five fields as in crontab(5), or six fields with the seconds first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from apscheduler.triggers.cron import CronTrigger

from relay.domain.schedule import InvalidSchedule

_NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS: Final = ("second", "minute", "hour", "day", "month", "day_of_week")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_TICK: Final = timedelta(microseconds=1)
_HINT: Final = "minute hour day month weekday, as in '30 3 * * 1-5'"


class Expression:
    """When a cron job fires, in a time zone. Raises InvalidSchedule.

    As in crontab(5), weekdays count from Sunday = 0, and 7 is Sunday too. If both day and weekday are restricted,
    one match is enough. In the night when clocks go back, a job with fixed hours fires once.
    """

    def __init__(self, text: str, timezone: str = "UTC") -> None:
        fields = _NICKNAMES.get(text.strip(), text).split()
        if len(fields) not in {5, 6}:
            raise InvalidSchedule(f"{text[:80]!r} has {len(fields)} fields, not five", field="cron", hint=_HINT)
        named = dict(zip(_FIELDS, fields if len(fields) == 6 else ["0", *fields], strict=True))
        self.text = f"{' '.join(text.split())} {timezone}"
        self._fixed = not named["hour"].startswith("*")
        try:
            zone = ZoneInfo(timezone)
        except (KeyError, ValueError, OSError) as error:
            raise InvalidSchedule(
                f"{timezone[:80]!r} is not a time zone", field="timezone", hint="UTC, or Europe/Kyiv"
            ) from error
        try:
            self._triggers = [CronTrigger(**one, timezone=zone) for one in _alternatives(named)]
        except ValueError as error:
            raise InvalidSchedule(f"{text[:80]!r} cannot be read: {error}", field="cron", hint=_HINT) from error
        if self.after(datetime.now(UTC)) is None:
            raise InvalidSchedule(f"{text[:80]!r} names a day that never comes", field="cron", hint=_HINT)

    def __str__(self) -> str:
        return self.text

    def after(self, time: datetime) -> datetime | None:
        """The first time after ``time``, in UTC; None if there is none."""
        found = [self._next(trigger, time) for trigger in self._triggers]
        return min((one for one in found if one is not None), default=None)

    def _next(self, trigger: Any, time: datetime) -> datetime | None:
        while True:
            fire: datetime | None = trigger.get_next_fire_time(None, (time + _TICK).astimezone(trigger.timezone))
            if fire is None:
                return None
            time = fire.astimezone(UTC)
            if not (self._fixed and fire.fold):
                return time


def _alternatives(fields: dict[str, str]) -> list[dict[str, str]]:
    fields = {**fields, "day_of_week": _weekdays(fields["day_of_week"])}
    if fields["day"].startswith("*") or fields["day_of_week"] == "*":
        return [fields]
    return [{**fields, "day_of_week": "*"}, {**fields, "day": "*"}]


def _weekdays(text: str) -> str:
    """The weekday field as names, because the library counts from Monday."""
    if text == "*":
        return text
    days: set[int] = set()
    for part in text.lower().split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        low, high = (0, 6) if span == "*" else (_weekday(first), _weekday(last or ("6" if step else first)))
        if high < low and high == 0:
            high = 7
        if high < low or (step and not step.isdecimal()) or step == "0":
            raise ValueError(f"weekday {part!r}")
        days.update(day % 7 for day in range(low, high + 1, int(step or 1)))
    return ",".join(_DAYS[day] for day in sorted(days))


def _weekday(text: str) -> int:
    if text in _DAYS:
        return _DAYS.index(text)
    if text.isdecimal() and int(text) <= 7:
        return int(text)
    raise ValueError(f"weekday {text!r}")
