"""Alarms on real servers: each rule fires for its rows, and goes away after; one evaluation serves all faces."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import yaml

from relay.adapters.postgres.alerts import PostgresAlerts
from relay.adapters.postgres.pool import Pool, Source, connected
from relay.cli import main
from relay.devstack import NatsServer, ValkeyServer
from relay.devstack.ports import free_port
from relay.domain.alarm_rules import RULES
from relay.domain.alarms import Alarm, AlarmsNow, AlarmState, PausedPart, Reading, Trend, Urgency, judge
from relay.domain.alerts import AlertClass, AlertState, Cause, alerts_of
from relay.domain.facts import Fact
from relay.domain.findings import Diagnosis
from relay.ops.alarms.prometheus import rules_file
from relay.ops.alarms.watch import ReadAlarms, Watch, WatchLimits
from relay.settings import ContextSettings, Settings
from scheduler.alerts import ConditionTick
from tests.clock import Clock
from tests.integration.ops_api import Api, configured, serving
from tests.integration.publishing import query

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
EVENT = (
    "SET relay.restoring = on; INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload,"
    " occurred_at{more}) VALUES (gen_random_uuid(), 'case', '7', 'opened', jsonb_build_object(),"
    " now() - interval '{age} seconds'{values})"
)
MESSAGE = (
    "INSERT INTO inbox_messages (message_id, subject, subscription, received_at{more})"
    " VALUES (gen_random_uuid(), 'up.x', 'from_upstream', now() - interval '{age} seconds'{values})"
)
TASK = (
    "SET relay.restoring = on; INSERT INTO task_outbox (id, type, payload, queue, created_at{more})"
    " VALUES (gen_random_uuid(), 'book', jsonb_build_object(), 'mail', now() - interval '{age} seconds'{values})"
)
LETTERS = (
    "INSERT INTO dead_letters (message_id, subscription, subject, class, reason, recorded_at)"
    " SELECT gen_random_uuid(), 'from_upstream', 'up.x', 'poison', 'HTTP 422: no', now() - interval '{age} s'"
    " FROM generate_series(1, {count})"
)
RUN = (
    "INSERT INTO scheduled_runs (job, scheduled_for, state, correlation_id)"
    " VALUES ('close', now(), '{state}', gen_random_uuid())"
)
CAUSE = (
    "INSERT INTO alerts (class, subject_type, subject, reason, raised_at)"
    " VALUES ('{kind}', 'subscription', 'x', 'no', now() - interval '{age} seconds')"
)
LATER = "UPDATE alerts SET raised_at = raised_at - interval '16 minutes'"
LED = (
    "UPDATE scheduler_lease SET holder = gen_random_uuid(), who = 'w', expires_at = now() + interval '{seconds} s'"
)
BRAKE = (
    "UPDATE relay_wakeup SET brake = 'refuse', brake_reason = 'full', brake_since = now(), brake_until = {until}"
)


@dataclass(frozen=True)
class Case:
    """What makes a rule fire, and what ends it, in SQL. ``age``: whether time alone makes it fire.

    ``labels``: those besides the context.
    """

    cause: str
    cure: str
    labels: tuple[str, ...] = ()
    age: bool = False


CASES: Final = {
    "JetrelayOutboxStalled": Case(
        EVENT.format(more="", values="", age="{age}"), "DELETE FROM outbox_events", age=True
    ),
    "JetrelayBacklogStandsStill": Case(
        EVENT.format(more="", values="", age=600), "DELETE FROM outbox_events", ("events",)
    ),
    "JetrelayInboxStalled": Case(
        MESSAGE.format(more="", values="", age="{age}"),
        "UPDATE inbox_messages SET processed_at = now()",
        ("from_upstream",),
        age=True,
    ),
    "JetrelayTasksStalled": Case(
        TASK.format(more="", values="", age="{age}"), "DELETE FROM task_outbox", age=True
    ),
    "JetrelayDeadLetters": Case(
        LETTERS.format(age=5, count=1), "UPDATE dead_letters SET status = 'resolved'", ("from_upstream", "poison")
    ),
    "JetrelayDeadLettersSurge": Case(
        LETTERS.format(age=5, count=21),
        "UPDATE dead_letters SET recorded_at = now() - interval '16 minutes'",
        ("from_upstream",),
    ),
    "JetrelayEventsDead": Case(
        EVENT.format(more=", dead_at", values=", now()", age=5), "UPDATE outbox_events SET published_at = now()"
    ),
    "JetrelayTasksFailed": Case(
        TASK.format(more=", status, finished_at", values=", 'failed', now()", age=5),
        "UPDATE task_outbox SET status = 'completed'",
    ),
    "JetrelayHandlerAway": Case(
        "INSERT INTO handler_circuits (subscription, opened_at, reason)"
        " VALUES ('from_upstream', now() - interval '{age} seconds', 'HTTP 503')",
        "UPDATE handler_circuits SET opened_at = NULL",
        ("from_upstream",),
        age=True,
    ),
    "JetrelayKeysParked": Case(
        "INSERT INTO parked_keys (subscription, order_key, message_id, reason)"
        " VALUES ('from_upstream', 'k', gen_random_uuid(), 'HTTP 422')",
        "DELETE FROM parked_keys",
        ("from_upstream",),
    ),
    "JetrelayCronRunFailed": Case(
        f"{RUN.format(state='started')}; UPDATE scheduled_runs SET state = 'failed', finished_at = now()",
        LATER,
        ("close",),
    ),
    "JetrelayCronRunMissed": Case(RUN.format(state="missed"), LATER, ("close",)),
    "JetrelayWebhookFailing": Case(
        CAUSE.format(kind="dead_event", age="{age}"), "UPDATE alerts SET sent_at = now()", age=True
    ),
    "JetrelayCorrectionFailed": Case(CAUSE.format(kind="failed_correction", age=5), LATER),
    "JetrelayCondition": Case(CAUSE.format(kind="condition", age=5), LATER),
    "JetrelayProducerRestored": Case(
        "INSERT INTO orphaned_events (event_id, stream, stream_seq, stored_at)"
        " VALUES (gen_random_uuid(), 'SEA', 7, now())",
        "UPDATE orphaned_events SET found_at = found_at - interval '16 minutes'",
        ("SEA",),
    ),
    "JetrelayPublishFailing": Case(
        EVENT.format(more=", publish_attempts, publish_error", values=", 3, 'no'", age="{age}"),
        "DELETE FROM outbox_events",
        age=True,
    ),
    "JetrelayProducersBraked": Case(
        BRAKE.format(until="now() + interval '1 hour'"),
        "UPDATE relay_wakeup SET brake = NULL, brake_reason = NULL, brake_since = NULL, brake_until = NULL",
    ),
    "JetrelayHandlerFailing": Case(
        MESSAGE.format(
            more=", attempts, last_error, next_attempt_at", values=", 3, 'HTTP 503', now()", age="{age}"
        ),
        MESSAGE.format(more=", processed_at", values=", now()", age=1),
        ("from_upstream",),
        age=True,
    ),
    "JetrelayNoLeader": Case(LED.format(seconds=-120), LED.format(seconds=120)),
}
#: Those that no row causes: see the tests of servers that do not answer.
OF_SERVERS: Final = {"JetrelayServerUnreachable", "JetrelayBacklogUnknown"}


def lending(url: str | None = None) -> Callable[[ContextSettings], AbstractAsyncContextManager[Source]]:
    """Lends the database of a context."""
    return lambda context: connected(url or context.database, "tests")


@pytest.fixture
def settings(database_url: str, nats_server: NatsServer, valkey: ValkeyServer) -> Settings:
    """The context `sea`, which has a webhook."""
    found = configured(database_url, nats_server.url, valkey.url)
    sea = {"database_url": database_url, "alerts": {"webhook": "https://127.0.0.1:1/hook"}}
    given = {**found.contexts["sea"].model_dump(include={"subscriptions"}, exclude_unset=True), **sea}
    return Settings.model_validate(
        {"nats_url": nats_server.url, "redis_url": valkey.url, "contexts": {"sea": given}}
    )


async def look(settings: Settings, **how: Any) -> AlarmsNow:
    return await Watch(settings, lending(), once=True, **how).look()


def of(found: AlarmsNow, rule: str) -> list[Alarm]:
    return [it for it in found.alarms if it.rule.name == rule]


def test_each_rule_is_made_to_fire_or_says_why_only_prometheus_can_judge_it() -> None:
    elsewhere = {name for name, rule in RULES.items() if rule.elsewhere}
    assert {*CASES} | OF_SERVERS | elsewhere == {*RULES}
    assert elsewhere.isdisjoint({*CASES} | OF_SERVERS)


@pytest.mark.parametrize("name", CASES)
async def test_a_rule_fires_for_its_rows_and_goes_away_after(
    name: str, settings: Settings, database_url: str
) -> None:
    rule, case = RULES[name], CASES[name]
    if name != "JetrelayNoLeader":
        assert of(await look(settings), name) == []
    long = rule.over * (name != "JetrelayHandlerFailing") + rule.lasting.total_seconds() + 30
    run(database_url, case.cause.format(age=long) if case.age else case.cause)
    [alarm] = of(found := await look(settings), name)
    assert (alarm.state, found.worst) in {(AlarmState.FIRING, it) for it in (rule.urgency, Urgency.PAGE)}
    assert alarm.labels == dict(zip(rule.labels, ("sea", *case.labels), strict=True))
    assert rule.holds(alarm.value)
    assert "{" not in f"{alarm.text}{alarm.action}{[path for _, path in alarm.links]}"
    run(database_url, case.cure)
    assert of(await look(settings), name) == []


@pytest.mark.parametrize("name", [it for it, case in CASES.items() if case.age and RULES[it].lasting])
async def test_a_rule_that_has_not_held_for_long_enough_is_pending(
    name: str, settings: Settings, database_url: str
) -> None:
    rule = RULES[name]
    seconds = rule.over * (name != "JetrelayHandlerFailing")
    run(database_url, CASES[name].cause.format(age=seconds + 2))
    [alarm] = of(await look(settings), name)
    # On a machine that stood still meanwhile it may have held for long enough.
    held = datetime.now(UTC) - alarm.since
    assert alarm.state is (AlarmState.PENDING if held < rule.lasting else AlarmState.FIRING)


def run(url: str, statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statements)


# --- the same rules for Prometheus ---


def test_the_file_of_prometheus_is_made_of_the_rules() -> None:
    assert (ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text() == rules_file()


def test_thresholds_durations_and_words_of_both_judges_come_from_the_same_value() -> None:
    for name, rule in RULES.items():
        changed = replace(
            rule, over=rule.over + 7, lasting=rule.lasting + timedelta(seconds=7), says="other words"
        )
        before, after = (yaml.safe_load(rules_file([it]))["groups"][0]["rules"][0] for it in (rule, changed))
        judges = [judge({name: it}, [reading(it, rule.over + 6)], {}, datetime.now(UTC)) for it in (rule, changed)]
        fixed = before["expr"] == after["expr"]
        assert fixed or [len(it) for it in judges] == [1, 0], name
        assert (after["for"], after["annotations"]["summary"]) != (before.get("for"), "other words")
        assert after["for"] == f"{int(changed.lasting.total_seconds())}s"
        assert after["annotations"]["summary"] == "other words"


def reading(rule: Any, value: float) -> Reading:
    return Reading(rule=rule.name, labels=dict.fromkeys(rule.labels, "x"), value=value)


# --- servers that do not answer ---


async def test_a_context_whose_database_is_away_is_told_and_hides_no_other(
    settings: Settings, database_url: str, nats_server: NatsServer, valkey: ValkeyServer
) -> None:
    both = configured(database_url, nats_server.url, valkey.url)
    run(database_url, LETTERS.format(age=5, count=1))
    found = await look(both)
    [away] = of(found, "JetrelayServerUnreachable")
    assert (away.labels, away.state) == ({"context": "quiet", "server": "postgresql"}, AlarmState.FIRING)
    assert [*found.unread] == ["quiet"]
    assert [it.context for it in of(found, "JetrelayDeadLetters")] == ["sea"]
    assert of(await look(settings), "JetrelayServerUnreachable") == []


async def test_a_database_that_hangs_takes_a_bounded_time(settings: Settings) -> None:
    @asynccontextmanager
    async def never(_: ContextSettings) -> AsyncIterator[Source]:
        await asyncio.Event().wait()
        yield None  # type: ignore[misc]

    clock = Clock()
    watch = Watch(settings, never, shared=False, limits=WatchLimits(fresh_s=0, patience_s=0.05), clock=clock)
    first = await watch.look()
    assert "no answer" in first.unread["sea"]
    assert [it.state for it in of(first, "JetrelayServerUnreachable")] == [AlarmState.PENDING]
    rule = RULES["JetrelayBacklogUnknown"]
    clock.now += rule.over + rule.lasting.total_seconds() + 1
    [unknown] = of(await watch.look(), rule.name)
    assert unknown.state is AlarmState.FIRING


async def test_servers_that_all_contexts_share_are_one_alarm_each(settings: Settings) -> None:
    nowhere = {"nats_url": f"nats://127.0.0.1:{free_port()}", "redis_url": f"redis://127.0.0.1:{free_port()}"}
    away = Settings.model_validate({**settings.model_dump(exclude_unset=True), **nowhere, "contexts": {}})
    found = of(await look(away), "JetrelayServerUnreachable")
    assert {it.labels["server"] for it in found} == {"nats", "redis"}
    assert {it.text for it in found} == {f"all contexts: {it} cannot be reached" for it in ("nats", "redis")}


# --- one evaluation, since when, trend, what is paused ---


async def test_all_viewers_share_an_evaluation(settings: Settings, database_url: str) -> None:
    lent = []

    @asynccontextmanager
    async def counting(context: ContextSettings) -> AsyncIterator[Source]:
        lent.append(context.name)
        async with connected(context.database, "tests") as source:
            yield source

    clock = Clock()
    watch = Watch(settings, counting, clock=clock)
    seen = await asyncio.gather(*(watch.answer(ReadAlarms()) for _ in range(20)))
    assert (lent, len({id(it) for it in seen})) == (["sea"], 1)
    clock.now += WatchLimits().fresh_s
    await watch.look()
    assert lent == ["sea", "sea"]


async def test_an_alarm_says_since_when_over_restarts_and_how_it_changes(
    settings: Settings, database_url: str
) -> None:
    run(database_url, LETTERS.format(age=600, count=2))
    clock = Clock()
    watch = Watch(settings, lending(), limits=WatchLimits(fresh_s=0), clock=clock)
    [first] = of(await watch.look(), "JetrelayDeadLetters")
    assert first.trend is None
    for count, trend in ((1, Trend.GROWING), (0, Trend.GROWING)):
        clock.now += WatchLimits().apart_s
        run(database_url, LETTERS.format(age=5, count=count))
        [now] = of(await watch.look(), "JetrelayDeadLetters")
        assert now.trend is trend
    [again] = of(await look(settings), "JetrelayDeadLetters")
    assert all(abs(it.since - first.since) < timedelta(seconds=30) for it in (now, again))
    assert timedelta(minutes=9) < datetime.now(UTC) - again.since


async def test_what_is_paused_on_purpose_is_no_alarm() -> None:
    rule = RULES["JetrelayInboxStalled"]
    of_two = [
        Reading(rule=rule.name, labels={"context": "sea", "subscription": name}, value=1e6, since=1e6)
        for name in ("a", "b")
    ]
    paused = [
        PausedPart(context="sea", kind="subscription", name="a"),
        PausedPart(context="land", kind="context", name="b"),
    ]
    assert [it.subject for it in judge(RULES, of_two, {}, datetime.now(UTC), paused)] == ["b"]


async def test_what_has_the_same_labels_is_one_alarm() -> None:
    """Subscriptions that no file names share a label: their counts are added, of ages the worst counts."""
    readings = [
        Reading(rule=rule, labels={"context": "sea", "subscription": "other"}, value=value, since=since)
        for rule in ("JetrelayKeysParked", "JetrelayInboxStalled")
        for value, since in ((2e6, 7e6), (1e6, 9e6))
    ]
    found = {it.rule.name: it for it in judge(RULES, readings, {}, datetime.now(UTC))}
    assert {name: it.value for name, it in found.items()} == {
        "JetrelayKeysParked": 3e6,
        "JetrelayInboxStalled": 2e6,
    }
    assert all(datetime.now(UTC) - it.since >= timedelta(seconds=9e6) for it in found.values())


# --- the scheduler tells of each beginning and end ---


async def test_an_alarm_alerts_when_it_begins_and_when_it_has_ended(settings: Settings, database_url: str) -> None:
    facts: list[Fact] = []
    run(database_url, LED.format(seconds=300))
    async with Pool(database_url, max_size=2, application_name="tests") as pool:
        watch = Watch(settings, lending(), shared=False, limits=WatchLimits(fresh_s=0))
        tick = ConditionTick("sea", settings, PostgresAlerts(pool.connection), facts.append, watch.look)
        run(database_url, LETTERS.format(age=5, count=2))
        for _ in range(2):
            await tick.observe_alarms(await watch.look())
        run(database_url, "UPDATE dead_letters SET status = 'resolved'")
        await tick.observe_alarms(await watch.look())
    rows = query(
        database_url,
        "SELECT id, state, subject, reason, since, about FROM alerts WHERE class = 'alarm' ORDER BY id",
    )
    assert [(it["state"], it["subject"]) for it in rows] == [
        (it, "from_upstream, poison") for it in ("raised", "resolved")
    ]
    causes = [
        Cause(**{**it, "kind": AlertClass.ALARM, "state": AlertState(it["state"]), "subject_type": "subscription"})
        for it in rows
    ]
    [raised, _] = [json.loads(it.body()) for it in alerts_of("sea", causes, "runbook.md")]
    assert (raised["class"], raised["runbook"]) == ("alarm", "runbook.md#jetrelaydeadletters")
    assert "2 open incidents, poison" in raised["text"]
    assert query(database_url, "SELECT count(*) AS n FROM alert_conditions")[0]["n"] == 0


async def test_a_look_that_could_not_read_ends_no_alarm(settings: Settings, database_url: str) -> None:
    async with Pool(database_url, max_size=2, application_name="tests") as pool:
        tick = ConditionTick("sea", settings, PostgresAlerts(pool.connection), lambda _: None)
        run(database_url, LETTERS.format(age=5, count=1))
        await tick.observe_alarms(await look(settings, shared=False))
        before = query(database_url, "SELECT count(*) AS n FROM alert_conditions")[0]["n"]
        await tick.observe_alarms(AlarmsNow(at=datetime.now(UTC), alarms=[], unread={"sea": "no answer"}))
        await tick.observe(Diagnosis(examined=[]))
    assert query(database_url, "SELECT count(*) AS n FROM alert_conditions")[0]["n"] == before > 0


# --- the faces ---


@pytest.fixture
async def api(settings: Settings) -> AsyncIterator[Api]:
    async with serving(settings) as api:
        yield api


async def test_the_api_lists_alarms_the_worst_first(api: Api, database_url: str) -> None:
    run(database_url, LETTERS.format(age=5, count=1))
    run(database_url, EVENT.format(more="", values="", age=600))
    found = await api.get("/alarms")
    assert [found["worst"], found["alarms"][0]["severity"]] == ["page", "page"]
    [letters] = [it for it in found["alarms"] if it["rule"] == "JetrelayDeadLetters"]
    assert letters["links"][0]["path"] == "/contexts/sea/dead-letters?subscription=from_upstream&class=poison"
    assert letters["runbook"] == "docs/how-to/runbook.md#jetrelaydeadletters"
    assert (await api.get("/alarms?context=sea"))["alarms"] == found["alarms"]
    await api.get("/alarms?context=none", 404)


@pytest.mark.parametrize(
    ("statement", "status", "last"),
    [
        ("SELECT 1", 0, "nothing fires."),
        (LETTERS.format(age=5, count=1), 1, "1 ticket."),
        (EVENT.format(more="", values="", age=600), 2, "2 page."),
    ],
)
def test_the_command_says_the_worst_by_its_status(
    statement: str,
    status: int,
    last: str,
    database_url: str,
    nats_server: NatsServer,
    valkey: ValkeyServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    run(database_url, LED.format(seconds=600))
    run(database_url, statement)
    subscription = '[contexts.sea.subscriptions.from_upstream]\nstream = "UP"\nfilter_subject = "up.>"'
    (tmp_path / "relay.toml").write_text(
        f'nats_url = "{nats_server.url}"\nredis_url = "{valkey.url}"\n[contexts.sea]\n'
        f'database_url = "{database_url}"\n{subscription}\nhandler = "http://127.0.0.1:9/handle"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["relay", "alarms"])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr().out.splitlines()
    assert (ended.value.code, printed[-1]) == (status, last)


async def test_of_many_alarms_of_one_rule_it_says_how_many_are_left_out(
    settings: Settings, database_url: str
) -> None:
    for name in ("poison", "deterministic", "exhausted", "unconfirmed"):
        run(database_url, LETTERS.format(age=5, count=1).replace("'poison'", f"'{name}'"))
    shown, left_out = (await look(settings)).first(3)
    assert left_out == {"JetrelayDeadLetters": 1}
    assert len([it for it in shown if it.rule.name == "JetrelayDeadLetters"]) == 3
