"""Workload, handlers and the collection of the final state, without faults: what they record is the truth."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import nats
import psycopg
import pytest

from chaos import collect, deployment, raw_rows
from chaos.evidence import Evidence, read
from chaos.history import History, Outcome, Plan, Produced, Source
from chaos.plan import Answer, answer_to, effects_of
from chaos.producer import Producer
from chaos.proxy import Proxy, at_port
from chaos.rig import Rig
from chaos.sampler import Sampler
from chaos.tables import prepare
from chaos.workload import Workload
from relay.adapters.postgres.migrations import upgrade
from relay.devstack import NatsServer, PostgresServer
from relay.domain.errors import BrokerUnreachable
from relay.domain.identity import MSG_ID
from tests.waiting import wait_for

SEED = 7
ATTEMPTS = 8
KINDS = {"one", "batch", "rollback", "bad"}


# --- a whole run without a fault ---


@pytest.fixture(scope="module")
def run(server_root: Path) -> Iterator[Evidence]:
    """Six seconds of work on real servers and processes, drained and collected."""
    # Who never succeeds is to be given up soon.
    with Rig(server_root / "workload", workers=1, schedulers=1, seed=SEED, max_attempts=ATTEMPTS) as rig:
        prepare(rig.urls, SEED, rig.history, hang=timedelta(seconds=4))
        rig.launch()
        yield work(rig)


def work(rig: Rig) -> Evidence:
    history = History(rig.history / "run.jsonl")
    workload = Workload(rig.producer_url, history, SEED, rate=120, batch=40)
    with Sampler(rig.urls, history, lambda: workload.committed):
        with workload:
            workload.burst("bad", len(raw_rows.BAD))
            wait_for("enough of everything", lambda: workload.committed > 600 and kinds(rig) == KINDS)
        assert collect.settle(rig.urls, rig.nats.url, 90), collect.left(rig.urls, rig.nats.url)
    collect.collect(rig.urls, rig.nats.url, history)
    history.close()
    return read(rig.history)


def kinds(rig: Rig) -> set[str]:
    return {operation.kind for operation in read(rig.history).operations}


def of(run: Evidence, *, committed: bool = True, bad: bool = False) -> dict[str, Produced]:
    wanted = Outcome.OK if committed else Outcome.FAILED
    return {
        event.id: event
        for operation in run.operations
        if operation.outcome is wanted
        for event in operation.events
        if event.bad is bad
    }


def test_every_committed_event_is_published_received_and_finished_once(run: Evidence) -> None:
    good, bad = of(run), of(run, bad=True)
    assert {row.event_id for row in run.business} == {*good, *bad}
    assert {row.id: row.state for row in run.outbox} == {
        **dict.fromkeys(good, "published"),
        **dict.fromkeys(bad, "dead"),
    }
    assert Counter(message.id for message in run.stream) == Counter(good.keys())
    assert {(row.id, row.stream_seq) for row in run.outbox if row.id in good} == {
        (message.id, message.seq) for message in run.stream
    }
    assert {row.id: row.source for row in run.inbox} == {id: event.source.value for id, event in good.items()}
    dead = {Plan.POISON, Plan.NEVER}
    states = {id: "dead-lettered" if event.plan in dead else "processed" for id, event in good.items()}
    assert {row.id: row.state for row in run.inbox} == states
    # Whatever is tested here must have happened.
    assert {event.source for event in good.values()} == set(Source)
    assert {event.plan for event in good.values()} >= {Plan.ACCEPT, Plan.REPEAT, Plan.POISON, Plan.FLAKY}
    assert len(bad) >= len(raw_rows.BAD)


def test_nothing_rolled_back_is_anywhere(run: Evidence) -> None:
    undone = of(run, committed=False)
    assert undone
    seen = [record.id for record in (*run.outbox, *run.stream, *run.inbox)]
    seen += [row.event_id for row in run.business] + [effect.message_id for effect in run.effects]
    assert undone.keys().isdisjoint(seen)


def test_every_event_has_the_effects_of_its_plan(run: Evidence) -> None:
    good = of(run)
    found = Counter((effect.message_id, effect.source, effect.key) for effect in run.effects)
    expected = {(id, event.source, event.key): effects_of(event.plan) for id, event in good.items()}
    assert found == {event: count for event, count in expected.items() if count}


def planned(event: Produced) -> list[str]:
    """The answers that an event gets while nothing else goes wrong."""
    answers: list[str] = []
    again = {Answer.ERROR, Answer.HANG, Answer.DROP}
    while not answers or (answers[-1] in again and len(answers) < ATTEMPTS):
        answers.append(answer_to(event.id, SEED, len(answers) + 1).value)
    if event.source in {Source.HTTP, Source.SLOW} and event.plan is Plan.DROP:
        answers[-1] = "repeat"  # its effect was committed at the first call
    return answers


def test_the_calls_are_those_of_the_plan(run: Evidence) -> None:
    calls: dict[str, list[str]] = defaultdict(list)
    for call in sorted(run.calls, key=lambda call: call.at):
        calls[call.message_id].append(call.answer)
    good = of(run)
    assert calls.keys() == good.keys()
    # On a slow machine a call may take longer than its time, and is then made again.
    assert all(answers[0] in {planned(good[id])[0], "late"} for id, answers in calls.items())
    others = [event for id, event in good.items() if calls[id] != planned(event) and "late" not in calls[id]]
    assert len(others) < len(good) / 100, others


def test_dead_letters_have_incidents(run: Evidence) -> None:
    expected = {
        (id, event.source.value, "poison" if event.plan is Plan.POISON else "exhausted")
        for id, event in of(run).items()
        if event.plan in {Plan.POISON, Plan.NEVER}
    }
    assert {(incident.message_id, incident.source, incident.kind) for incident in run.incidents} == expected
    assert len(run.incidents) == len(expected)
    assert {incident.attempts for incident in run.incidents if incident.kind == "exhausted"} <= {ATTEMPTS}


def in_order(rows: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Ids by key, in the order of ``rows``."""
    keys: dict[str, list[str]] = defaultdict(list)
    for key, id in rows:
        keys[key].append(id)
    return keys


def test_the_stream_has_each_key_in_the_order_of_places(run: Evidence) -> None:
    good = of(run)
    business = sorted(run.business, key=lambda row: row.place)
    places = in_order((row.key, row.event_id) for row in business if row.event_id in good)
    assert in_order((good[message.id].key, message.id) for message in run.stream) == places
    assert max(map(len, places.values())) > 5
    numbers: dict[str, list[int]] = defaultdict(list)
    for row in business:
        numbers[row.key].append(row.place)
    assert all(found == list(range(1, len(found) + 1)) for found in numbers.values())


def test_consumers_and_samples_say_that_all_is_done(run: Evidence) -> None:
    good = of(run)
    last = {source.value: max(m.seq for m in run.stream if good[m.id].source is source) for source in Source}
    last[deployment.AUDIT] = last[Source.PYTHON.value]  # it reads the same messages
    assert {end.name.rpartition("__")[2]: end.last_seq for end in run.consumers} == last
    assert all((end.pending, end.ack_pending) == (0, 0) and end.ack_floor >= end.last_seq for end in run.consumers)
    end = run.samples[-1]
    committed = len(good) + len(of(run, bad=True))
    assert (end.committed, end.published, end.handled, end.outbox, end.inbox) == (
        committed,
        len(good),
        len(good),
        0,
        0,
    )
    assert max(sample.inbox or 0 for sample in run.samples) > 0


# --- producers under faults ---


@pytest.fixture
def urls(postgres: PostgresServer, database_template: str) -> Iterator[dict[str, str]]:
    """The three databases of a run, on the server that all tests share."""
    names = {name: f"{name}_{uuid4().hex}" for name in deployment.DATABASES}
    urls = {name: postgres.create_database(unique, database_template) for name, unique in names.items()}
    prepare(urls, SEED)
    yield urls
    for unique in names.values():
        postgres.drop_database(unique)


def query(url: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(sql.encode()).fetchall()


def check_outcomes(url: str, run: Evidence) -> None:
    """What is known is true, and what is unknown is whole."""
    booked = {str(id) for [id] in query(url, "SELECT event_id FROM chaos_business")}
    assert booked == {str(id) for [id] in query(url, "SELECT id FROM outbox_events")}
    for operation in run.operations:
        present = booked & {event.id for event in operation.events}
        match operation.outcome:
            case Outcome.OK:
                assert len(present) == len(operation.events)
            case Outcome.FAILED:
                assert not present
            case Outcome.UNKNOWN:
                assert len(present) in {0, len(operation.events)}


def test_a_restart_of_postgres_leaves_no_wrong_record(own_postgres: PostgresServer, tmp_path: Path) -> None:
    urls = dict.fromkeys(deployment.DATABASES, own_postgres.create_database("all"))
    upgrade(urls["shop"])
    prepare(urls, SEED)
    history = History(tmp_path / "run.jsonl")
    workload = Workload(urls["shop"], history, SEED, rate=2_000, batch=50)

    def grows() -> None:
        before = workload.committed
        wait_for("producers commit", lambda: workload.committed > before + 300)

    with Sampler(urls, history, lambda: workload.committed, interval=0.1), workload:
        for _ in range(2):
            grows()
            own_postgres.stop("immediate")
            wait_for("the outage is seen", lambda: read(tmp_path).samples[-1].published is None)
            own_postgres.start()
        grows()
    run = read(tmp_path)
    outcomes = Counter(operation.outcome for operation in run.operations if operation.kind != "rollback")
    assert outcomes[Outcome.FAILED] > 0
    check_outcomes(urls["shop"], run)
    last = run.samples[-1]
    assert (last.published, last.handled, last.inbox) == (0, 0, 0)
    assert last.outbox == len(query(urls["shop"], "SELECT FROM outbox_events"))


def test_the_order_of_places_is_the_order_of_the_outbox(urls: dict[str, str], tmp_path: Path) -> None:
    with Workload(urls["shop"], History(tmp_path / "run.jsonl"), SEED, rate=5_000, batch=30) as workload:
        wait_for("many transactions", lambda: workload.committed > 3_000)
    by_place = query(urls["shop"], "SELECT key, event_id::text FROM chaos_business ORDER BY place")
    by_seq = query(urls["shop"], "SELECT aggregate_id, id::text FROM outbox_events ORDER BY seq")
    assert in_order(by_place) == in_order(by_seq)


def test_an_answer_that_never_comes_leaves_the_outcome_unknown(
    urls: dict[str, str], postgres: PostgresServer
) -> None:
    with Proxy() as proxy:
        link = proxy.link("producer-postgres", postgres.port)

        def book(_connection: object, number: int, _events: object) -> None:
            if number == 2:
                link.black_hole(replies_only=True)

        one = Producer(at_port(urls["shop"], link.port), patience=0.5, book=book)
        events = [Produced(f"00000000-0000-4000-8000-{n:012}", Source.HTTP, "k", Plan.ACCEPT) for n in range(3)]
        assert one.plain(1, events[:1], together=True) is Outcome.OK
        outcomes: list[Outcome] = []
        thread = threading.Thread(target=lambda: outcomes.append(one.plain(2, events[1:2], together=True)))
        thread.start()
        begun = time.monotonic()
        wait_for("the producer is woken up", lambda: one.watch() or not thread.is_alive())
        assert time.monotonic() - begun < 20, "it was not the patience of half a second that woke it up"
        assert outcomes == [Outcome.UNKNOWN]
        link.heal()
        assert one.session(3, events[2:]) is Outcome.OK
        one.close()
    assert len(query(urls["shop"], "SELECT FROM outbox_events")) == 3


def test_the_same_seed_makes_the_same_events(urls: dict[str, str], tmp_path: Path) -> None:
    def first(name: str, seed: int) -> list[Produced]:
        query(urls["shop"], "WITH gone AS (DELETE FROM outbox_events) DELETE FROM chaos_business RETURNING 1")
        (tmp_path / name).mkdir()
        history = History(tmp_path / name / "run.jsonl")
        with Workload(urls["shop"], history, seed, threads=1, rate=5_000, batch=5) as workload:
            wait_for("some events", lambda: workload.committed > 50)
        operations = read(tmp_path / name).operations
        return [event for operation in operations for event in operation.events][:40]

    assert first("one", 1) == first("again", 1) != first("other", 2)


# --- settling ---


def test_a_system_that_has_work_left_is_not_drained(urls: dict[str, str], own_nats: NatsServer) -> None:
    one = Producer(urls["shop"])
    event = Produced("00000000-0000-4000-8000-000000000001", Source.HTTP, "k", Plan.ACCEPT)
    assert collect.left(urls, own_nats.url)  # no stream
    asyncio.run(create_stream(own_nats.url))
    assert collect.settle(urls, own_nats.url, 1)
    one.plain(1, [event], together=True)
    one.close()
    assert list(collect.left(urls, own_nats.url)) == ["1 events are not published"]
    query(urls["shop"], "UPDATE outbox_events SET published_at = now() RETURNING 1")
    began = time.monotonic()
    assert not collect.settle(urls, own_nats.url, 1)
    assert time.monotonic() - began > 1
    missing = "1 published events are not in"
    assert list(collect.left(urls, own_nats.url)) == [f"{missing} the stream", f"{missing} the inbox"]
    insert = "INSERT INTO inbox_messages (message_id, subject) VALUES ('{}', 's') RETURNING 1"
    query(urls["sea"], insert.format(event.id))
    assert list(collect.left(urls, own_nats.url)) == ["1 messages are not handled"]
    query(urls["sea"], "UPDATE inbox_messages SET dead_lettered_at = now() RETURNING 1")
    assert list(collect.left(urls, own_nats.url)) == ["1 dead letters have no incident"]


#: Whose replies break off, after how many bytes of a connection: while it begins, or in the middle of rows.
BROKEN_OFF = [("postgres", 1), ("postgres", 5_000), ("nats", 5_000)]


@pytest.mark.parametrize(("server", "after"), BROKEN_OFF)
def test_a_server_that_is_away_for_a_moment_costs_the_verdict_nothing(
    urls: dict[str, str],
    postgres: PostgresServer,
    own_nats: NatsServer,
    tmp_path: Path,
    server: str,
    after: int,
) -> None:
    """Each record is there once: what was read before the reply broke off is not written."""
    ids = [f"00000000-0000-4000-8000-{n:012}" for n in range(300)]
    one = Producer(urls["shop"])
    one.plain(1, [Produced(id, Source.HTTP, "k", Plan.ACCEPT) for id in ids], together=True)
    one.close()
    asyncio.run(create_stream(own_nats.url, ids))
    with Proxy() as proxy, ThreadPoolExecutor(1) as aside, closing(History(tmp_path / "run.jsonl")) as history:
        links = {name: proxy.link(name, it.port) for name, it in (("postgres", postgres), ("nats", own_nats))}
        ends = {name: at_port(url, links["postgres"].port) for name, url in urls.items()}
        nats_url = at_port(own_nats.url, links["nats"].port)
        links[server].cut_replies(after)
        with pytest.raises((psycopg.OperationalError, BrokerUnreachable)), closing(History(tmp_path / "no")) as no:
            collect.collect(ends, nats_url, no, seconds=0)
        before = links[server].counters.reset
        collecting = aside.submit(collect.collect, ends, nats_url, history)
        wait_for("a reply breaks off", lambda: links[server].counters.reset > before)
        links[server].heal()
        collecting.result(120)
    found = read(tmp_path)
    assert sorted(row.event_id for row in found.business) == ids
    assert sorted(row.id for row in found.outbox) == ids
    assert sorted(row.id for row in found.stream) == ids


async def create_stream(url: str, ids: Iterable[str] = ()) -> None:
    client = await nats.connect(url)
    js = client.jetstream()
    streams = {
        deployment.STREAM: "shop.event.>",
        deployment.TWIN_STREAM: "sea.event.>",
        deployment.LETTERS: "sea.dlq.>",
    }
    for name, subject in streams.items():
        await js.add_stream(name=name, subjects=[subject])
    for id in ids:
        await js.publish("shop.event.http.v1", b"{}", headers={MSG_ID: id})
    await client.close()
