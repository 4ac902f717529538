"""Crontab expressions: five fields as in crontab(5), or six fields with the seconds first."""

from __future__ import annotations

import re
from bisect import bisect_left
from datetime import UTC, datetime, timedelta, timezone
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

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
#: The end of a range of weekdays: 0 is Sunday, and so is 7.
_TO_SUNDAY: Final = re.compile(r"-(0|SUN)(?![0-9A-Z])", re.IGNORECASE)
#: A range of one value: cronsim reads it as open when a step follows.
_ALONE: Final = re.compile(r"(?<![0-9A-Z])([0-9A-Z]+)-([0-9A-Z]+)(/0*[1-9][0-9]*)?(?![0-9A-Z/])", re.IGNORECASE)
_NAMED: Final = {
    **dict(zip(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"), range(7), strict=True)),
    **dict(zip(("JAN", "FEB", "MAR", "APR", "MAY", "JUN"), range(1, 7), strict=True)),
    **dict(zip(("JUL", "AUG", "SEP", "OCT", "NOV", "DEC"), range(7, 13), strict=True)),
}
_MINUTE: Final = timedelta(minutes=1)
_HINT: Final = "minute hour day month weekday, as in '30 3 * * 1-5'"


class Expression:
    """When a cron job fires, in a time zone. Raises InvalidSchedule.

    As in crontab(5), weekdays count from Sunday = 0, and 7 is Sunday too. If both day and weekday are restricted,
    one match is enough. A job with fixed hours fires once for each of its times, as with Debian's cron: at the
    first of two when clocks go back, and when clocks go forward if they leave the time out.
    """

    def __init__(self, text: str, timezone: str = "UTC") -> None:
        fields = _NICKNAMES.get(text.strip(), text).split()
        if len(fields) not in {5, 6}:
            raise InvalidSchedule(f"{text[:80]!r} has {len(fields)} fields, not five", field="cron", hint=_HINT)
        self.text = f"{' '.join(text.split())} {timezone}"
        *others, weekday = map(_alone, fields)
        self._fields = " ".join([*others, _alone(_TO_SUNDAY.sub("-7", weekday))])
        self._fixed = not fields[-4].startswith("*")
        try:
            self._zone = ZoneInfo(timezone)
        except (KeyError, ValueError, OSError) as error:
            raise InvalidSchedule(
                f"{timezone[:80]!r} is not a time zone", field="timezone", hint="UTC, or Europe/Kyiv"
            ) from error
        try:
            never = self.after(datetime.now(UTC)) is None
        except (CronSimError, ValueError) as error:
            raise InvalidSchedule(f"{text[:80]!r} cannot be read: {error}", field="cron", hint=_HINT) from error
        if never:
            raise InvalidSchedule(f"{text[:80]!r} names a day that never comes", field="cron", hint=_HINT)

    def __str__(self) -> str:
        return self.text

    def after(self, time: datetime) -> datetime | None:
        """The first time after ``time``, in UTC; None if there is none."""
        return self._by_the_clock(time) if self._fixed else self._by_the_hour(time)

    def _by_the_clock(self, time: datetime) -> datetime | None:
        """Count on a clock that knows no summer time, and look up when its times come."""
        for local in CronSim(self._fields, time.astimezone(self._zone).replace(tzinfo=None)):
            # After clocks have gone back, times that come twice are over.
            if (found := self._moment(local)) > time:
                return found
        return None

    def _moment(self, local: datetime) -> datetime:
        """The first moment at which clocks show this time or, if they leave it out, a later one."""
        while True:
            found = local.replace(tzinfo=self._zone).astimezone(UTC)
            if found.astimezone(self._zone).replace(tzinfo=None) == local:
                return found
            local = local.replace(second=0) + _MINUTE

    def _by_the_hour(self, time: datetime) -> datetime | None:
        """Count hours as they pass. When clocks change, begin anew with what they show then."""
        local = time.astimezone(self._zone)
        while (naive := next(CronSim(self._fields, local.replace(tzinfo=None)), None)) is not None:
            offset = local.utcoffset() or timedelta()
            found = naive.replace(tzinfo=timezone(offset))
            if self._offset(found.timestamp()) == offset:
                return found.astimezone(UTC)
            seconds = range(int(local.timestamp()) + 1, int(found.timestamp()) + 1)
            change = seconds[bisect_left(seconds, True, key=lambda it: self._offset(it) != offset)]
            local = datetime.fromtimestamp(change - 1, timezone(self._offset(change)))
        return None

    def _offset(self, moment: float) -> timedelta:
        return datetime.fromtimestamp(moment, self._zone).utcoffset() or timedelta()


def _alone(field: str) -> str:
    """A field in which each range of one value is that value."""
    return _ALONE.sub(lambda it: it[1] if _number(it[1]) == _number(it[2]) else it[0], field)


def _number(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdecimal() else _NAMED.get(text.upper(), text)
