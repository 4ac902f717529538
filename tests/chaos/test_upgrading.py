"""Databases are upgraded to a made-up next release while a fleet works on them and producers write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from uuid import uuid4

import psycopg
import pytest

from chaos import collect, deployment, raw_rows, tables
from chaos.evidence import read
from chaos.faults import FAULTS, UPGRADE
from chaos.history import History, Outcome, Produced, Source
from chaos.plan import Plan
from chaos.producer import Producer
from chaos.rig import Rig
from chaos.stage import Stage
from chaos.workload import Workload
from relay.adapters.postgres.migrations import status, upgrade
from relay.adapters.postgres.revisions import in_order, newest
from relay.devstack import PostgresServer
from tests.waiting import wait_for

SEED = 5
NEXT = in_order(deployment.NEXT_RELEASE)[-1]
CONTEXTS = (deployment.PRODUCING, deployment.CONSUMING)


@pytest.fixture
def rig(server_root: Path) -> Iterator[Rig]:
    rig = Rig(server_root / "upgraded", workers=1, schedulers=1, seed=SEED, max_attempts=8)
    with rig:
        tables.prepare(rig.urls, SEED, rig.history)
        rig.launch()
        yield rig


def revisions(rig: Rig) -> set[str | None]:
    return {status(rig.urls[context]).current for context in CONTEXTS}


def handled(rig: Rig) -> int:
    with psycopg.connect(rig.urls[deployment.CONSUMING]) as connection:
        row = connection.execute("SELECT count(*) FROM inbox_messages WHERE processed_at IS NOT NULL").fetchone()
        return int(row[0]) if row else 0


def goes_on(rig: Rig) -> None:
    before = handled(rig)
    wait_for("the fleet handles", lambda: handled(rig) > before + 50)


def test_a_fleet_works_through_the_upgrade_and_on_the_schema_of_the_next_release(rig: Rig) -> None:
    history, notes = History(rig.history / "run.jsonl"), list[str]()
    workload = Workload(rig.producer_url, history, SEED, rate=60, batch=20)
    with workload:
        goes_on(rig)
        assert revisions(rig) == {newest()}
        with FAULTS[UPGRADE].inject(Stage(rig, Random(1), history, 1, notes=notes), "postgres"):
            goes_on(rig)
            # Readers hold on to the tables.
            assert revisions(rig) == {newest()}
        assert revisions(rig) == {NEXT}
        goes_on(rig)
    assert [note.partition(",")[0] for note in notes] == [f"upgrade: {newest()} to {NEXT}"] * 2
    assert collect.settle(rig.urls, rig.nats.url, 90), collect.left(rig.urls, rig.nats.url)
    operations = read(rig.history).operations
    refused = [it for it in operations if it.kind in {"one", "batch"} and it.outcome is not Outcome.OK]
    # Whoever writes while the table is changed waits and is not refused.
    assert operations
    assert refused == []
    history.close()


def test_a_producer_whose_key_another_holds_for_too_long_goes_on_with_the_next(
    postgres: PostgresServer,
) -> None:
    url = postgres.create_database("shop_in_conflict")
    upgrade(url)
    tables._execute(url, tables._SHOP)
    writer = Producer(url, lock_wait=0.2)
    first, second = ([Produced(str(uuid4()), Source.HTTP, "k", Plan.ACCEPT)] for _ in range(2))
    try:
        with psycopg.connect(url) as other:
            raw_rows.insert(other, Produced(str(uuid4()), Source.HTTP, "k", Plan.ACCEPT), "{}")
            assert writer.plain(1, first, together=True) is Outcome.FAILED
            assert writer.session(2, second) is Outcome.FAILED
        assert writer.plain(3, first, together=True) is Outcome.OK
        assert writer.session(4, second) is Outcome.OK
    finally:
        writer.close()
        postgres.drop_database("shop_in_conflict")
