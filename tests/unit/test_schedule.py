"""When a cron job fires, whether it is due, and how it is declared."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from relay import cron as cron_module
from relay.bus import CommandBus
from relay.cron import CronRegistry, cron, load_crons
from relay.cron.expression import Expression
from relay.domain.errors import ConfigurationError, InvalidKey
from relay.domain.schedule import Due, InvalidSchedule, due

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires(expression: str, start: str, count: int, timezone: str = "UTC") -> list[str]:
    parsed, time, found = Expression(expression, timezone), at(start), []
    for _ in range(count):
        time = parsed.after(time) or pytest.fail("no further time")
        found.append(time.strftime("%m-%d %H:%M:%S"))
    return found


# --- expressions ---


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 3 * * *", ["01-01 03:00:00", "01-02 03:00:00"]),
        ("*/20 * * * *", ["01-01 00:20:00", "01-01 00:40:00"]),
        ("*/20 * * * * *", ["01-01 00:00:20", "01-01 00:00:40"]),
        ("0 0 1 */3 *", ["04-01 00:00:00", "07-01 00:00:00"]),
        ("@hourly", ["01-01 01:00:00", "01-01 02:00:00"]),
        # 2026-01-01 is a Thursday; weekdays count from Sunday, and seven is Sunday, too.
        ("0 0 * * 0", ["01-04 00:00:00", "01-11 00:00:00"]),
        ("0 0 * * 7", ["01-04 00:00:00", "01-11 00:00:00"]),
        ("0 0 * * 1-5", ["01-02 00:00:00", "01-05 00:00:00"]),
        ("0 0 * * sat-sun", ["01-03 00:00:00", "01-04 00:00:00"]),
        ("0 0 * * */3", ["01-03 00:00:00", "01-04 00:00:00"]),
        ("0 0 * * 5/2", ["01-02 00:00:00", "01-04 00:00:00"]),
        ("@weekly", ["01-04 00:00:00", "01-11 00:00:00"]),
        # Where both are restricted, either is enough.
        ("0 0 13 * 5", ["01-02 00:00:00", "01-09 00:00:00", "01-13 00:00:00", "01-16 00:00:00"]),
    ],
)
def test_expressions_mean_what_they_mean_in_a_crontab(expression: str, expected: list[str]) -> None:
    assert fires(expression, "2026-01-01T00:00:00", len(expected)) == expected


def test_a_time_zone_moves_with_its_clocks() -> None:
    found = fires("0 3 * * *", "2026-03-27T12:00:00", 3, "Europe/Berlin")
    assert found == ["03-28 02:00:00", "03-29 01:00:00", "03-30 01:00:00"]


def test_on_the_night_when_clocks_go_back_a_fixed_hour_comes_once_and_every_minute_still_comes() -> None:
    found = fires("30 2 * * *", "2026-10-24T12:00:00", 2, "Europe/Berlin")
    assert found == ["10-25 00:30:00", "10-26 01:30:00"]
    found = fires("*/30 * * * *", "2026-10-24T23:45:00", 4, "Europe/Berlin")
    assert found == ["10-25 00:00:00", "10-25 00:30:00", "10-25 01:00:00", "10-25 01:30:00"]


def test_on_the_night_when_clocks_go_forward_a_time_that_is_left_out_comes_as_they_do() -> None:
    found = fires("30 2 * * *", "2026-03-27T12:00:00", 3, "Europe/Berlin")
    assert found == ["03-28 01:30:00", "03-29 01:00:00", "03-30 00:30:00"]


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "* * * *",
        "* * * * * * *",
        "61 * * * *",
        "x * * * *",
        "* * * * 8",
        "* * * * 5-2",
        "* * * * */0",
        "0 0 31 2 *",
    ],
)
def test_what_cannot_be_read_or_never_comes_is_refused(expression: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        Expression(expression)
    assert caught.value.field == "cron"


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../../etc/passwd"])
def test_an_unknown_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidSchedule, match="not a time zone"):
        Expression("* * * * *", zone)


# --- due ---

DAILY = Expression("0 3 * * *")


@pytest.mark.parametrize(
    ("since", "now", "expected"),
    [
        ("2026-01-01T03:00", "2026-01-02T02:59:59", None),
        ("2026-01-01T03:00", "2026-01-02T03:00:00", Due(at("2026-01-02T03:00"))),
        # A week without a scheduler is made up for by one run.
        ("2026-01-01T03:00", "2026-01-08T05:00:00", Due(at("2026-01-08T03:00"))),
        ("2026-01-08T03:00", "2026-01-08T05:00:00", None),
    ],
)
def test_what_was_missed_becomes_one_run(since: str, now: str, expected: Due | None) -> None:
    assert due(DAILY, at(since), at(now), DAY) == expected


def test_later_than_the_grace_a_run_is_missed() -> None:
    since, now = at("2026-01-01T03:00"), at("2026-01-03T02:00")
    assert due(DAILY, since, now, HOUR) == Due(at("2026-01-02T03:00"), missed=True)
    assert due(DAILY, at("2026-01-02T03:00"), now, HOUR) is None
    assert due(DAILY, since, at("2026-01-02T03:00:30"), timedelta(seconds=10)) == Due(
        at("2026-01-02T03:00"), missed=True
    )


@pytest.mark.parametrize("grace", [timedelta(seconds=10), timedelta(minutes=30), DAY, 7 * DAY])
def test_the_latest_time_is_found_at_once_however_long_the_outage(grace: timedelta) -> None:
    asked = 0

    class EverySecond:
        def after(self, time: datetime) -> datetime:
            nonlocal asked
            asked += 1
            return time.replace(microsecond=0) + timedelta(seconds=1)

    now = at("2026-01-08T05:00:00")
    assert due(EverySecond(), now - 7 * DAY, now, grace) == Due(now)
    assert asked < 100


# --- declaring ---


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CronRegistry:
    fresh = CronRegistry()
    monkeypatch.setattr(cron_module, "registry", fresh)
    return fresh


def command() -> Any:
    return None


def other() -> Any:
    return None


def declare(function: Any = command, expression: str = "* * * * *", **options: Any) -> None:
    cron(expression, bus=CommandBus(), **options)(function)


def test_a_job_is_called_after_its_function_and_belongs_to_the_only_context(registry: CronRegistry) -> None:
    declare()
    [job] = registry.of("sea", ["sea"])
    assert job.name == f"{__name__}.command"
    assert registry.find(job.name) is job


def test_where_there_are_several_contexts_a_job_names_its_own(registry: CronRegistry) -> None:
    declare(context="sea")
    assert len(registry.of("sea", ["sea", "sky"])) == 1
    assert registry.of("sky", ["sea", "sky"]) == []
    declare(other)
    with pytest.raises(InvalidSchedule, match="other'"):
        registry.of("sea", ["sea", "sky"])


def test_a_context_that_does_not_exist_is_refused(registry: CronRegistry) -> None:
    declare(context="see")
    with pytest.raises(InvalidSchedule, match="'see'") as caught:
        registry.of("sea", ["sea"])
    assert "sea" in str(caught.value.hint)


def test_two_jobs_of_one_name_are_refused_and_a_module_loaded_twice_is_not(registry: CronRegistry) -> None:
    declare(name="nightly")
    declare(name="nightly")
    with pytest.raises(InvalidSchedule, match="nightly"):
        declare(other, name="nightly")


def test_what_cannot_work_is_refused_where_it_is_declared(registry: CronRegistry) -> None:
    for options in ({"max_attempts": 0}, {"misfire_grace": timedelta()}, {"time_limit": timedelta()}):
        with pytest.raises(InvalidSchedule):
            declare(**options)
    with pytest.raises(InvalidSchedule):
        declare(lambda one, two: None)
    with pytest.raises(InvalidKey):
        declare(name="x" * 201)
    assert registry.of("sea", ["sea"]) == []


def test_a_module_that_cannot_be_imported_is_named(registry: CronRegistry) -> None:
    with pytest.raises(ConfigurationError, match=r"no\.such\.module"):
        load_crons(["no.such.module"], ["sea"])
    assert load_crons(["json"], ["sea"]) == {"sea": []}
