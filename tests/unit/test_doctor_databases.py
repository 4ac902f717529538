"""The checks of a database, against what it may say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from relay.adapters.postgres.inspection import (
    DatabaseDetails,
    DatabaseState,
    Holder,
    IdleSession,
    TableState,
)
from relay.adapters.postgres.revisions import MigrationStatus, compared, newest
from relay.domain.findings import Finding, Severity
from relay.ops.doctor.databases import CHECKS, CLOSE_CHECKS, TESTED

SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "autovacuum": "on",
    "track_counts": "on",
    "server_version": f"{TESTED}.1",
    "server_version_num": f"{TESTED}0001",
}
WELL = DatabaseState(tables=compared(newest()), settings=SETTINGS, sessions=10, room=97)
CLOSELY = DatabaseDetails(state=WELL, leader="host:1")


def found(state: DatabaseState = WELL) -> list[Finding]:
    return [finding for check in CHECKS for finding in check("postgresql sea", state)]


def closely(**details: Any) -> list[Finding]:
    state = replace(CLOSELY, **details)
    return [finding for check in CLOSE_CHECKS for finding in check("postgresql sea", state)]


def setting(name: str, value: str) -> DatabaseState:
    return replace(WELL, settings={**SETTINGS, name: value})


def test_a_database_that_is_well_has_no_finding() -> None:
    assert found() == []
    assert closely() == []


def test_tables_of_an_older_release_are_an_error_and_those_of_a_newer_one_none() -> None:
    older = MigrationStatus("0100_baseline", "0102_b", ("0101_a", "0102_b"))
    [finding] = found(replace(WELL, tables=older))
    assert (finding.code, finding.severity) == ("TABLES_OLD", Severity.ERROR)
    assert finding.text.endswith(" 0101_a, 0102_b")
    assert "relay db upgrade" in finding.remedy
    assert found(replace(WELL, tables=compared("9999_of_the_future"))) == []


@pytest.mark.parametrize("name", ["fsync", "full_page_writes", "synchronous_commit"])
def test_a_setting_that_loses_commits_is_told_with_what_to_set(name: str) -> None:
    [finding] = found(setting(name, "off"))
    assert (finding.code, finding.remedy) == ("COMMITS_MAY_BE_LOST", f"set {name} = on")


@pytest.mark.parametrize(("ahead", "word"), [(7.2, "7 s ahead"), (-90.0, "90 s behind")])
def test_a_clock_that_differs_is_told(ahead: float, word: str) -> None:
    [finding] = found(replace(WELL, ahead=ahead, exact=0.01))
    assert finding.code == "CLOCKS_DIFFER"
    assert word in finding.text


@pytest.mark.parametrize(("ahead", "exact"), [(4.9, 0.0), (-4.9, 0.0), (8.0, 3.5)])
def test_clocks_that_may_agree_are_not_told(ahead: float, exact: float) -> None:
    assert found(replace(WELL, ahead=ahead, exact=exact)) == []


def test_rights_that_are_missing_are_listed() -> None:
    lacking = [f"{right} on outbox_events" for right in ("SELECT", "INSERT", "UPDATE", "DELETE", "X")]
    [finding] = closely(lacking=lacking)
    assert finding.severity is Severity.ERROR
    assert finding.code == "RIGHTS_MISSING"
    assert "DELETE on outbox_events" in finding.text
    assert "X on outbox_events" not in finding.text
    assert "relay db grant" in finding.remedy


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (TableState("outbox_events", 10, 60_000, True), "60000 dead row versions"),
        (TableState("outbox_events", 10, 0, False), "autovacuum is off for outbox_events"),
        (TableState("outbox_events", 100_000, 60_000, True), ""),
        (TableState("outbox_events", 10, 50_000, True), ""),
    ],
)
def test_a_table_that_nobody_cleans_up_is_told(table: TableState, told: str) -> None:
    assert [told in finding.text for finding in closely(tables=[table])] == ([True] if told else [])


@pytest.mark.parametrize("name", ["autovacuum", "track_counts"])
def test_autovacuum_that_is_off_is_told(name: str) -> None:
    assert [finding.code for finding in closely(state=setting(name, "off"))] == ["NOT_VACUUMED"]


def test_who_holds_an_old_snapshot_is_named() -> None:
    holders = [
        Holder("the transaction of psql, process 7", 1_200.0, 90),
        Holder("the replication slot s", None, 2_000_000),
    ]
    found = closely(holders=holders)
    assert [it.code for it in found] == ["OLD_SNAPSHOT"] * 2
    for finding, holder, figures in zip(found, holders, (("90", "20 min"), ("2000000",)), strict=True):
        assert holder.name in finding.text
        assert all(f" {it}" in finding.text for it in figures)


def test_a_session_that_idles_in_its_transaction_is_named_with_how_to_end_it() -> None:
    [finding] = closely(idle=[IdleSession("django", 42, 90.0)])
    assert "django (process 42)" in finding.text
    assert "pg_terminate_backend(42)" in finding.remedy


def test_what_cannot_be_seen_is_unknown_and_not_well() -> None:
    assert [(it.code, it.severity) for it in closely(hidden=3)] == [("SESSIONS_HIDDEN", Severity.UNKNOWN)]


@pytest.mark.parametrize(("pooler", "severity"), [("transaction", Severity.ERROR), ("pooler", Severity.WARNING)])
def test_a_pooler_is_told(pooler: str, severity: Severity) -> None:
    assert [(it.code, it.severity) for it in closely(pooler=pooler)] == [("POOLER_MODE", severity)]


def test_a_server_whose_sessions_are_nearly_all_in_use_is_told() -> None:
    assert [it.code for it in closely(state=replace(WELL, sessions=90))] == ["SESSIONS_FULL"]


def test_a_paused_cron_job_is_told_with_the_command_that_lets_it_go_on() -> None:
    [found] = closely(paused=["nightly"])
    assert (found.code, found.remedy) == ("JOB_PAUSED", "relay schedule resume nightly")


def test_a_context_that_nobody_leads_is_told_but_not_without_tables() -> None:
    assert [it.code for it in closely(leader=None)] == ["NO_SCHEDULER"]
    assert closely(leader=None, state=replace(WELL, tables=compared(None))) == []
