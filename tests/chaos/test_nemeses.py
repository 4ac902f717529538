"""Each kind of fault bites while it lasts and is gone afterwards: on a rig with real processes under load."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

import nats
import nats.errors
import psutil
import psycopg
import pytest
import redis
from nats.js.api import StreamConfig
from typer.testing import CliRunner

from chaos import collect, cron_jobs, deployment, evidence, rude_handlers, tables
from chaos.cron_runs import one_at_a_time
from chaos.deployment import NEXT_RELEASE
from chaos.disk import SPARE, SmallDisks
from chaos.faults import FAULTS, IN_LIVENESS, UPGRADE
from chaos.history import Fault, History, Ran
from chaos.injections import foreign_answers, hostile, hostile_rows, operators, restored, still, store
from chaos.nemesis import Nemesis, Strike
from chaos.proxy_connection import Mode
from chaos.rig import Rig
from chaos.service import AWAY, HANGING
from chaos.stage import Stage
from chaos.windows import Windows
from chaos.workload import Workload
from relay.adapters.postgres.revisions import in_order, newest
from relay.cli import create_app
from relay.commands.reconcile import Stored
from relay.devstack.http_checks import connected_clients
from relay.devstack.ports import LOOPBACK
from relay.domain.identity import MSG_ID
from relay.domain.schedule import CLAIM
from tests.sampling import marked
from tests.waiting import DEADLINE_S, wait_for

SOON = 0.4
#: Kinds for several servers: see test_topologies.py.
OF_MANY_SERVERS = ("node-", "leader-", "failover-", "replica-")
tested: set[str] = set()


@pytest.fixture(scope="module")
def busy(server_root: Path) -> Iterator[tuple[Rig, Workload]]:
    with Rig(server_root / "rig", workers=2, seed=1, small_disks=True) as rig:
        tables.prepare(rig.urls, seed=1, history=rig.history)
        rig.launch()
        history = History(rig.history / "workload.jsonl")
        with Workload(rig.urls["shop"], history, seed=1, threads=2, rate=60, batch=20) as workload:
            yield rig, workload


@pytest.fixture(scope="module")
def rig(busy: tuple[Rig, Workload]) -> Rig:
    return busy[0]


@pytest.fixture(scope="module")
def workload(busy: tuple[Rig, Workload]) -> Workload:
    return busy[1]


@pytest.fixture
def history(rig: Rig) -> Iterator[History]:
    path = rig.history / "nemesis.jsonl"
    path.unlink(missing_ok=True)
    history = History(path)
    yield history
    history.close()


def records(rig: Rig) -> evidence.Evidence:
    return evidence.read(rig.history)


@pytest.fixture
def notes() -> list[str]:
    """What the record of the injected fault tells."""
    return []


@pytest.fixture
def inject(rig: Rig, history: History, notes: list[str]) -> Iterator[Callable[..., Callable[[], None]]]:
    """Inject a fault; call what is returned to heal it."""
    with ExitStack() as stack:

        def inject(name: str, target: str | None = None, seed: int = 1, **options: Any) -> Callable[[], None]:
            tested.add(name)
            stage = Stage(rig, Random(seed), history, 1, notes=notes, **options)
            own = stack.enter_context(ExitStack())
            own.enter_context(FAULTS[name].inject(stage, target or FAULTS[name].targets(rig)[0]))
            return own.close

        yield inject


# --- processes ---


def alive(process: psutil.Process) -> bool:
    """Whether it is there: what nobody has waited for yet is not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(("role", "how"), marked(product(("worker", "scheduler", "service"), ("kill", "term"))))
def test_an_ended_process_is_gone_and_has_a_successor(
    rig: Rig, inject: Any, notes: list[str], role: str, how: str
) -> None:
    process = rig.of_role(role)[0]
    before, starts = psutil.Process(process.pid), process.starts
    children = before.children(recursive=True)
    inject(f"{role}-{how}", process.name)()
    assert not any(map(alive, (before, *children)))
    assert process.pid != before.pid
    assert process.starts == starts + 1
    assert notes == []  # what was asked to end obeyed
    rig.await_ready()


@pytest.mark.parametrize("role", ["worker", "scheduler", "service"])
def test_a_frozen_process_stands_still_with_all_its_children(rig: Rig, inject: Any, role: str) -> None:
    process = rig.of_role(role)[0]
    root = psutil.Process(process.pid)
    tree = [root, *root.children(recursive=True)]
    heal = inject(f"{role}-freeze", process.name)
    assert {one.status() for one in tree} == {psutil.STATUS_STOPPED}
    heal()
    assert psutil.STATUS_STOPPED not in {one.status() for one in tree}
    assert process.pid == root.pid


def test_orphans_work_on_beside_the_successor_until_they_are_found(
    rig: Rig, inject: Any, notes: list[str]
) -> None:
    process = rig.processes["worker-1"]
    before = psutil.Process(process.pid)
    children = before.children(recursive=True)
    assert children
    heal = inject("worker-orphans", "worker-1")
    assert process.pid != before.pid
    orphans = sum(map(alive, children))
    assert orphans
    heal()
    assert not any(map(alive, children))
    assert notes == [f"{orphans} orphans"]
    rig.await_ready()


# --- PostgreSQL ---


def started_at(rig: Rig) -> Any:
    with psycopg.connect(rig.urls["shop"]) as connection:
        return connection.execute("SELECT pg_postmaster_start_time()").fetchone()


@pytest.mark.parametrize("how", ["immediate", "restart", "kill"])
def test_postgres_is_down_and_starts_anew(rig: Rig, inject: Any, how: str) -> None:
    before = started_at(rig)
    with psycopg.connect(rig.urls["shop"]) as connection:
        heal = inject(f"postgres-{how}")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(rig.urls["shop"], connect_timeout=2)
        heal()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert started_at(rig) != before
    recovered = "database system was not properly shut down" in rig.postgres.log_path.read_text()
    assert recovered or how == "restart"


def test_a_frozen_postgres_does_not_answer(rig: Rig, inject: Any) -> None:
    before = started_at(rig)
    heal = inject("postgres-freeze")
    with answering(lambda: started_at(rig)) as answer:
        assert not answer.within(SOON)
        heal()
        assert answer.within(60)
    assert started_at(rig) == before


def test_every_backend_is_terminated(rig: Rig, inject: Any) -> None:
    before = started_at(rig)
    with psycopg.connect(rig.urls["sea"]) as connection:
        inject("postgres-backends")()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert started_at(rig) == before


# --- nats-server ---


def greets(rig: Rig) -> bool:
    """nats-server speaks first."""
    try:
        with socket.create_connection((LOOPBACK, rig.nats.port), timeout=SOON) as connection:
            return connection.recv(4) == b"INFO"
    except OSError:
        return False


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_nats_is_down_and_starts_anew(rig: Rig, inject: Any, how: str) -> None:
    pid, last = rig.nats.pid, store.last_sequence(rig)
    heal = inject(f"nats-{how}")
    assert not greets(rig)
    heal()
    assert greets(rig)
    assert rig.nats.pid != pid
    assert store.last_sequence(rig) >= last


def test_a_frozen_nats_does_not_answer(rig: Rig, inject: Any) -> None:
    pid = rig.nats.pid
    heal = inject("nats-freeze")
    assert not greets(rig)
    heal()
    wait_for("nats answers", lambda: greets(rig))
    assert rig.nats.pid == pid


@pytest.mark.parametrize("name", ["stream-tail-loss", "stream-restored"])
def test_a_stream_loses_its_tail_and_the_fleet_brings_it_back(rig: Rig, inject: Any, name: str) -> None:
    count = committed(rig)
    wait_for("the fleet publishes", lambda: published(rig) > count + 30)
    inject(name)()
    [lost] = records(rig).lost
    assert lost.ids
    assert lost.fault == 1
    assert {rig.links[link].mode for link in store.LINKS} == {Mode.PASS}
    # The look at each reconnect may come before the loss is there; the next is half a minute later, and may fail.
    wait_for("what was lost is in the stream", lambda: set(lost.ids) <= held(rig, lost.ids))


def test_a_loss_is_told_exactly(rig: Rig, history: History) -> None:
    """What the record names is what the stream does not hold once its store is the older one."""
    stage = Stage(rig, Random(2), history, 1)
    found: list[set[str]] = []
    original = rig.links["worker-nats"].heal
    rig.links["worker-nats"].heal = lambda: (found.append(held(rig, records(rig).lost[0].ids)), original())  # type: ignore[method-assign]
    last = store.last_sequence(rig)
    try:
        with FAULTS["stream-tail-loss"].inject(stage, "nats"):
            pass
    finally:
        del rig.links["worker-nats"].heal
    assert found == [set()]  # before anybody could publish again
    [lost] = records(rig).lost
    assert int(stage.notes[0].split()[-1]) >= last - 1
    assert len(lost.ids) == int(stage.notes[0].split()[0])


def test_only_what_the_older_store_does_not_hold_was_lost(tmp_path: Path) -> None:
    history = History(tmp_path / "nemesis.jsonl")
    ids = [uuid4() for _ in range(3)]
    tail = [Stored.of(8 + place, {MSG_ID: str(id)}, datetime.now(UTC), b"") for place, id in enumerate(ids)]
    store._record(Stage(None, Random(1), history, 5), [*tail, Stored(11, None, datetime.now(UTC))], 9)  # type: ignore[arg-type]
    history.close()
    assert [(lost.fault, list(lost.ids)) for lost in evidence.read(tmp_path).lost] == [(5, [str(ids[2])])]


def committed(rig: Rig) -> int:
    return count(rig, "SELECT count(*) FROM outbox_events")


def published(rig: Rig) -> int:
    return count(rig, "SELECT count(*) FROM outbox_events WHERE published_at IS NOT NULL")


def count(rig: Rig, query: str) -> int:
    with psycopg.connect(rig.urls["shop"]) as connection:
        row = connection.execute(query).fetchone()  # type: ignore[arg-type]
        return int(row[0]) if row else 0


def held(rig: Rig, ids: Any) -> set[str]:
    last = store.last_sequence(rig)
    found = store._ask(rig, lambda auditor: auditor.stored(deployment.STREAM, 1, last))
    return {str(message.event_id) for message in found} & set(ids)


# --- the producer's database ---


@pytest.mark.parametrize(
    ("name", "known"),
    [
        pytest.param("producer-adopted", "SELECT id::text FROM outbox_events WHERE published_at IS NOT NULL"),
        pytest.param(
            "producer-reported",
            "SELECT event_id::text FROM orphaned_events WHERE reported_at IS NOT NULL",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_a_producer_is_set_back_and_its_lost_events_are_decided_about(
    rig: Rig, inject: Any, name: str, known: str
) -> None:
    wait_for("the fleet publishes", lambda: published(rig) > 30)
    inject(name)()
    [lost] = records(rig).set_back
    [told] = records(rig).diagnosed
    assert lost.ids
    assert (told.named, told.gone) != (None, None), told
    assert lost.decision in told.cause
    assert {id for [id] in execute(rig, "shop", known)} >= held(rig, lost.ids) > set()
    assert {rig.links[link].mode for link in restored.LINKS} == {Mode.PASS}
    before = published(rig)
    wait_for("the fleet publishes", lambda: published(rig) > before + 20)


def test_the_numbers_of_events_step_back(rig: Rig, inject: Any, notes: list[str]) -> None:
    number = "SELECT last_value FROM outbox_events_seq_seq"
    wait_for("many numbers are given", lambda: count(rig, number) > 100)
    with psycopg.connect(rig.urls["shop"]) as holder:  # nobody gets a number meanwhile
        holder.execute("LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE")
        before = count(rig, number)
        inject("sequence-back")()
        assert count(rig, number) == max(before - int(notes[0].split()[0]), 1)
    goes_on = published(rig)
    wait_for("the fleet publishes", lambda: published(rig) > goes_on + 20)


# --- what holds a backlog still ---

STILL = [name for name in FAULTS if name.startswith("still-")]
QUICKLY = {"still-pause", "still-loop"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICKLY else pytest.mark.soak) for name in STILL]
)
def test_a_cause_is_named_while_it_holds_a_backlog_and_not_afterwards(rig: Rig, inject: Any, name: str) -> None:
    inject(name)()
    [told] = records(rig).diagnosed
    assert told.named is not None, told
    assert told.gone is not None, told
    before = published(rig)
    wait_for("the fleet publishes", lambda: published(rig) > before + 20)


def test_a_cause_of_which_errors_tell_a_part_is_not_named() -> None:
    named = still.Named(((frozenset({"A"}), "x"), (frozenset({"B", "C"}), "")))
    assert not named.among({"A": "x"})
    assert not named.among({"A": "y", "B": "z"})
    assert named.among({"A": "an x", "C": "z"})
    assert named.still_in({"C": "z"})
    assert not named.still_in({"A": "y"})


# --- Valkey ---


def test_valkey_forgets_everything_when_flushed(rig: Rig, inject: Any) -> None:
    with redis.Redis.from_url(rig.valkey.url) as client:
        client.set("mine", 1)
        inject("valkey-flush")()
        assert client.get("mine") is None


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_valkey_is_down_and_starts_empty(rig: Rig, inject: Any, how: str) -> None:
    with redis.Redis.from_url(rig.valkey.url, retry=None) as client:
        client.set("mine", 1)
        heal = inject(f"valkey-{how}")
        with pytest.raises(redis.ConnectionError):
            client.get("mine")
        heal()
        assert client.get("mine") is None


def test_a_frozen_valkey_does_not_answer(rig: Rig, inject: Any) -> None:
    with redis.Redis.from_url(rig.valkey.url, socket_timeout=SOON, retry=None) as client:
        client.set("mine", 1)
        heal = inject("valkey-freeze")
        with pytest.raises(redis.TimeoutError):
            client.get("mine")
        heal()
        assert client.get("mine") == b"1"


# --- links ---


class answering:  # noqa: N801 - reads as the block it makes
    """Ask in a thread, so that a test can tell an answer that is late from one that never comes."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.result: Any = None
        self._thread = threading.Thread(target=self._run, args=[ask], daemon=True)

    def __enter__(self) -> answering:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()

    def within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self, ask: Callable[[], Any]) -> None:
        try:
            self.result = ask()
        except Exception as error:
            self.result = error


@pytest.fixture
def through(rig: Rig) -> Iterator[psycopg.Connection[Any]]:
    """A connection through a link that nobody else uses here."""
    with psycopg.connect(rig.producer_url, autocommit=True) as connection:
        yield connection


LINK = "producer-postgres"


def test_a_cut_link_breaks_connections_and_refuses_new_ones(rig: Rig, inject: Any, through: Any) -> None:
    heal = inject("link-cut", LINK)
    with pytest.raises(psycopg.OperationalError):
        through.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(rig.producer_url)
    heal()
    psycopg.connect(rig.producer_url).close()


def test_a_black_hole_answers_late(inject: Any, through: Any) -> None:
    heal = inject("link-black-hole", LINK)
    with answering(lambda: through.execute("SELECT 7").fetchone()) as answer:
        assert not answer.within(SOON)
        heal()
    assert answer.result == (7,)


def test_a_black_hole_that_forgets_answers_never(rig: Rig, inject: Any, through: Any) -> None:
    heal = inject("link-forgotten", LINK)
    with answering(lambda: through.execute("SELECT 7").fetchone()) as answer:
        assert not answer.within(SOON)
        heal()
    assert isinstance(answer.result, psycopg.OperationalError)
    psycopg.connect(rig.producer_url).close()


def test_a_deaf_link_lets_the_command_through(rig: Rig, inject: Any, through: Any) -> None:
    heal = inject("link-deaf", LINK)
    with answering(lambda: through.execute("CREATE TABLE heard ()")) as answer:
        wait_for("the command is obeyed", lambda: count(rig, "SELECT count(to_regclass('heard'))"))
        assert not answer.within(SOON)
        heal()
    assert not isinstance(answer.result, Exception)


def test_a_slow_link_takes_two_seconds_each_way(rig: Rig, inject: Any, through: Any) -> None:
    heal = inject("link-delay", LINK)
    began = time.monotonic()
    through.execute("SELECT 1")
    assert time.monotonic() - began >= 4
    heal()
    through.execute("SELECT 1")
    assert rig.links[LINK].mode is Mode.PASS


def test_replies_are_cut_in_the_middle(rig: Rig, inject: Any, through: Any) -> None:
    heal = inject("link-cut-reply", LINK)
    with pytest.raises(psycopg.OperationalError):
        through.execute("SELECT repeat('x', 10000)")
    heal()
    psycopg.connect(rig.producer_url).close()


def test_every_role_works_through_its_links_only(rig: Rig, inject: Any) -> None:
    rig.await_ready()

    def unused() -> list[str]:
        return [name for name, link in rig.links.items() if not link.counters.requested]

    wait_for("every link is used", lambda: not unused())
    for role in ("worker", "scheduler"):
        heal = inject("link-cut", f"{role}-nats")
        wait_for(
            "nobody came another way",
            lambda r=role: not connected_clients(rig.nats.monitor_url)[f"jetrelay-{r}"],
        )
        heal()
    rig.await_ready()


def test_a_link_loses_one_direction_and_keeps_the_other(rig: Rig, inject: Any, notes: list[str]) -> None:
    """Seeds that choose each of them; the mode of the link is what the tests of the proxy look into."""
    found = set()
    for seed in range(12):
        heal = inject("link-one-way", LINK, seed)
        found.add((notes.pop().partition(", ")[2], rig.links[LINK].mode))
        heal()
        assert rig.links[LINK].mode is Mode.PASS
    assert found == {
        (f"{lost} {how}", mode)
        for lost, mode in (("requests", Mode.MUTE), ("replies", Mode.DEAF))
        for how in ("lost", "late")
    }


# --- within a worker ---


def test_a_workers_clock_is_wrong_by_minutes_and_right_again(rig: Rig, inject: Any, notes: list[str]) -> None:
    levers = rig.levers("worker-1")

    def believed() -> list[float]:
        return [float(path.read_text()) for path in levers.glob("clock.*") if path.suffix[1:].isdigit()]

    heal = inject("worker-clock", "worker-1")
    [wrong] = wait_for("the worker has another time", believed)
    skew = float(notes[0].removesuffix(" s"))
    assert abs(skew) >= 30
    assert abs(wrong - time.time() - skew) < 30
    assert not list(rig.levers("worker-2").glob("clock*"))
    heal()
    wait_for("the worker has the right time", lambda: abs(believed()[0] - time.time()) < 10)
    before = published(rig)
    wait_for("the fleet publishes", lambda: published(rig) > before + 20)


def test_a_stalled_loop_is_blocked_for_seconds(rig: Rig, inject: Any, notes: list[str]) -> None:
    began = time.monotonic()
    inject("worker-stall", "worker-1")()
    seconds = float(notes[0].removesuffix(" s"))
    assert seconds >= 2
    assert time.monotonic() - began >= seconds - 0.1
    # The loop took the order: another would lie there for the next worker.
    assert not (rig.levers("worker-1") / "stall").exists()
    rig.await_ready()


# --- full disks ---


#: Some 30 MB.
TOO_MUCH = "CREATE TABLE large AS SELECT repeat(md5(n::text), 30) FROM generate_series(1, 30000) AS n"


def needs_disk(rig: Rig, name: str) -> None:
    if name not in rig.disks:
        tested.add(f"{name}-disk-full")
        pytest.skip("takes root on Linux")


def test_a_full_disk_of_postgres_refuses_writes_until_there_is_room(rig: Rig, inject: Any) -> None:
    needs_disk(rig, "postgres")
    heal = inject("postgres-disk-full")
    with psycopg.connect(rig.urls["cases"], autocommit=True) as connection, pytest.raises(psycopg.Error):
        connection.execute(TOO_MUCH)
    heal()
    before = published(rig)
    wait_for("the fleet publishes", lambda: published(rig) > before + 20)


async def store_large(rig: Rig, seconds: float = 30) -> None:
    """Store more than a full disk has left. The server itself is asked: its log may lie on the full disk."""
    client = await nats.connect(rig.nats.url, allow_reconnect=False)
    async with client:
        stream = client.jetstream(timeout=seconds)
        await stream.add_stream(StreamConfig("LARGE", subjects=["large"]))
        await stream.publish("large", bytes(4 * SPARE))


def test_a_full_disk_of_nats_refuses_messages_until_there_is_room(rig: Rig, inject: Any) -> None:
    needs_disk(rig, "nats")
    asyncio.run(store_large(rig))
    heal = inject("nats-disk-full")
    with pytest.raises(nats.errors.Error):  # a refusal, or no answer at all
        asyncio.run(store_large(rig, seconds=3))
    heal()
    asyncio.run(store_large(rig))
    before = published(rig)
    wait_for("the fleet publishes", lambda: published(rig) > before + 20)


# --- what people do ---


@pytest.mark.parametrize(
    ("name", "what", "count"),
    [("poison-rows", "bad", 5), ("future-rows", "future", 5), ("handler-hang", "slow", 60)],
)
def test_what_is_committed_for_a_fault_is_the_workloads(
    rig: Rig, inject: Any, name: str, what: str, count: int
) -> None:
    called: list[tuple[str, int]] = []
    flag = rig.history / HANGING
    heal = inject(name, burst=lambda what, count: called.append((what, count)))
    assert called == [(what, count)]
    assert flag.exists() is (name == "handler-hang")
    heal()
    assert not flag.exists()


def test_a_handler_is_away_for_the_time_of_the_fault(rig: Rig, inject: Any) -> None:
    flag = rig.history / AWAY
    heal = inject("handler-away")
    assert flag.exists()
    heal()
    assert not flag.exists()


def test_large_payloads_are_many(inject: Any) -> None:
    called: list[tuple[str, int]] = []
    inject("large-payloads", burst=lambda what, count: called.append((what, count)))()
    [(what, count)] = called
    assert what == "large"
    assert 30 <= count <= 90


def test_hostile_messages_are_in_the_stream_where_their_record_says(rig: Rig, inject: Any) -> None:
    last = store.last_sequence(rig)
    inject("hostile-messages")()
    found = records(rig).hostile
    assert len(found) == len(hostile.SUBJECTS)
    assert all(message.seq > last and UUID(message.stand_in) for message in found)
    assert store.last_sequence(rig) >= max(message.seq for message in found)


def test_forged_letters_are_in_the_stream_of_dead_letters(rig: Rig, inject: Any) -> None:
    wait_for("something is received", lambda: [*collect._rows(rig.urls["sea"], "SELECT 1 FROM inbox_messages")])
    inject("forged-letters")()
    [done] = records(rig).forged
    assert done.count > 0


@pytest.mark.soak
def test_operators_commands_end_and_say_how(rig: Rig, inject: Any, notes: list[str]) -> None:
    wait_for("something is published", lambda: published(rig) > 10)
    for seed in range(3):
        inject("operator-commands", seed=seed)()
    done = {note.partition(":")[0] for note in notes if note.endswith(": done")}
    assert len(done) >= 2, notes
    replayed = {id for done in records(rig).operated if done.action == "replay" for id in done.ids}
    assert len(replayed) in {0, 5}


@pytest.mark.parametrize("command", operators.COMMANDS, ids=lambda command: command.__name__)
def test_every_command_is_one_that_relay_knows(rig: Rig, history: History, command: Any) -> None:
    words = command(Stage(rig, Random(1), history, 1))
    assert not words or CliRunner().invoke(create_app(), [*words[:2], "--help"]).exit_code == 0


def test_a_job_runs_when_an_operator_asks_for_it(rig: Rig, history: History) -> None:
    stage = Stage(rig, Random(1), history, 1)
    assert operators._schedule_run in operators.COMMANDS
    before = len(runs(rig, cron_jobs.ASKED))
    words = [*operators._schedule_run(stage), "--wait", str(DEADLINE_S)]
    assert operators.run(stage, words, 2 * DEADLINE_S) == "done"
    [run] = runs(rig, cron_jobs.ASKED)[before:]
    assert run.done
    collect.collect(rig.urls, rig.nats.url, history)
    asked = [done for done in records(rig).operated if done.action == "run"]
    assert run.began >= asked[-1].at
    assert list(asked[-1].ids) == [cron_jobs.ASKED]
    assert one_at_a_time(records(rig)).kept


def test_a_job_comes_every_ten_seconds_and_runs_for_longer_than_a_lease_at_times(rig: Rig) -> None:
    lease = CLAIM.total_seconds()

    def long() -> list[Ran]:
        return [run for run in runs(rig, cron_jobs.STEADY) if run.done and run.ended - run.began > lease]

    before = len(long())
    # Each third run is long. On a busy machine one may lose its claim and be cancelled; then the next one counts.
    wait_for("one of these runs ends", lambda: len(long()) > before, 3 * DEADLINE_S)


def runs(rig: Rig, job: str) -> list[Ran]:
    return sorted((run for run in records(rig).ran if run.job == job), key=lambda run: run.began)


def test_rows_go_to_the_archive_and_are_found_there(rig: Rig, inject: Any, notes: list[str]) -> None:
    """What was published a minute ago goes; the rows of this rig are younger, so they are made as old first."""
    finished = "SELECT 1 FROM inbox_messages WHERE processed_at IS NOT NULL"
    wait_for("messages are processed", lambda: len(execute(rig, "sea", finished)) > 20)
    two_minutes = "interval '2 minutes'"
    # Rows that the fleet has locked stay as they are: waiting for them, in another order, may be a deadlock.
    free = "FOR UPDATE SKIP LOCKED"
    published_rows = f"SELECT id FROM outbox_events WHERE published_at IS NOT NULL {free}"
    older = f"published_at = published_at - {two_minutes}"
    execute(rig, "shop", f"UPDATE outbox_events SET {older} WHERE id IN ({published_rows})")
    older = f"received_at = received_at - {two_minutes}, processed_at = processed_at - {two_minutes}"
    handled_rows = f"SELECT message_id FROM inbox_messages WHERE processed_at IS NOT NULL {free}"
    execute(rig, "sea", f"UPDATE inbox_messages SET {older} WHERE message_id IN ({handled_rows})")
    inject("archive")()
    assert notes[1:] == ["done"]
    count = int(notes[0].removesuffix(" events"))
    assert count > 0
    rows = list(collect.archived(rig.cold, "outbox"))
    assert len(rows) == count
    kept = {str(id) for [id] in execute(rig, "shop", "SELECT id FROM outbox_events")}
    assert kept.isdisjoint(row["id"] for row in rows)
    assert all(row["published_at"] for row in rows)
    inbox = collect.archived(rig.cold, "inbox")
    assert {row.get("source_id") or row["message_id"] for row in inbox} == {row["id"] for row in rows}
    # As after a day: a stream that still had them would have them handled once more.
    assert held(rig, {row["id"] for row in rows}) == set()


def execute(rig: Rig, database: str, statement: str) -> list[Any]:
    with psycopg.connect(rig.urls[database]) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def test_upkeep_beside_a_reader_leaves_everything_as_it_was(rig: Rig, inject: Any, notes: list[str]) -> None:
    heal = inject("postgres-upkeep")
    before = published(rig)
    wait_for("the fleet publishes beside the reader", lambda: published(rig) > before + 20)
    heal()
    assert [note.partition(", ")[0] for note in notes] == [
        f"upgrade: {newest()} to {in_order(NEXT_RELEASE)[-1]}"
    ] * 2


def test_messages_with_the_ids_of_events_come_from_another_stream(rig: Rig, inject: Any, notes: list[str]) -> None:
    wait_for("events are committed", lambda: published(rig) >= 50)
    inject("same-ids")()
    [twins] = records(rig).twins
    assert notes == [f"{len(twins.ids)} messages"]
    assert len(twins.ids) == 50
    noted = "SELECT count(*) FROM chaos_beside WHERE subscription = 'twin' AND message_id = ANY (%s::uuid[])"
    with psycopg.connect(rig.urls["sea"], autocommit=True) as sea:
        wait_for("all are handled", lambda: sea.execute(noted, [list(twins.ids)]).fetchone() == (50,))


# --- what strangers, sessions and functions do ---


def test_rows_of_a_stranger_are_refused_or_hold_up_nobody(rig: Rig, inject: Any, notes: list[str]) -> None:
    inject("hostile-rows")()
    taken, refused = (int(it.split()[0]) for it in reversed(notes[-1].split(", ")))
    assert min(taken, refused) > 0
    ids = [id for rows in records(rig).strange for id in rows.ids]
    assert len(ids) == len(hostile_rows.ROWS) == taken + refused
    unfinished = "published_at IS NULL AND dead_at IS NULL"
    left = f"SELECT count(*) FROM outbox_events WHERE id = ANY (%s::uuid[]) AND {unfinished}".encode()
    for context in ("shop", "sea"):
        with psycopg.connect(rig.urls[context], autocommit=True) as connection:
            wait_for("all are over", lambda it=connection: it.execute(left, [ids]).fetchone() == (0,))
    goes_on(rig)


def test_a_program_answers_before_the_stream_does(rig: Rig, inject: Any, notes: list[str]) -> None:
    heal = inject("foreign-answers")
    with psycopg.connect(rig.urls["shop"]) as shop:
        known = {id for [id] in shop.execute("SELECT id FROM outbox_events")}

    def published_since(rig: Rig) -> int:
        found = execute(rig, "shop", "SELECT id FROM outbox_events WHERE published_at IS NOT NULL")
        return len({id for [id] in found} - known)

    goes_on(rig, published_since)
    heal()
    # A batch has one reply subject: how many it sees depends on how full the batches are.
    assert int(notes[-1].split()[0]) >= len(foreign_answers.ANSWERS)
    false = "SELECT 1 FROM outbox_events WHERE published_stream <> %s OR published_seq <= 0"
    with psycopg.connect(rig.urls["shop"]) as shop:
        assert shop.execute(false, [deployment.STREAM]).fetchone() is None


@pytest.mark.parametrize("how", ["nats-stop", "nats-freeze"])
def test_a_program_that_answers_ends_also_while_nats_is_away(
    rig: Rig, inject: Any, notes: list[str], how: str
) -> None:
    heal = inject("foreign-answers")
    back = inject(how)
    heal()
    assert notes[-1].endswith(" answers")
    back()
    rig.await_ready()


@pytest.mark.parametrize("seed", [1, 5])
def test_new_sessions_have_odd_settings_until_these_are_reset(
    rig: Rig, inject: Any, notes: list[str], seed: int
) -> None:
    """One of the seeds sets them for the role of the fleet, the other one for both databases."""
    url = deployment.as_role(rig.urls["sea"], deployment.FLEET)
    heal = inject("odd-sessions", seed=seed)
    assert notes == ["role fleet" if seed == 1 else "database"]
    with psycopg.connect(url) as odd:
        assert odd.execute("SHOW DateStyle").fetchone() == ("SQL, DMY",)
    goes_on(rig)
    heal()
    with psycopg.connect(url) as usual:
        assert usual.execute("SHOW DateStyle").fetchone() == ("ISO, MDY",)


def test_another_program_has_all_connections_until_health_says_so(rig: Rig, inject: Any, notes: list[str]) -> None:
    inject("few-connections", hold=(0.5, 0.5))()
    [told] = records(rig).diagnosed
    assert (told.named, told.gone) != (None, None), told
    assert int(notes[-1].split()[0]) > 20
    goes_on(rig)


def test_what_handlers_leave_behind_reaches_no_other_call(rig: Rig, inject: Any) -> None:
    heal = inject("leftovers")
    goes_on(rig, handled)
    heal()
    assert [it for it in records(rig).leftovers if it.what] == []
    assert not (rig.history / rude_handlers.LEAVING).exists()


def test_exceptions_of_any_kind_end_no_process(rig: Rig, workload: Workload, inject: Any) -> None:
    starts = [it.starts for it in rig.of_role("worker")]
    heal = inject("base-exceptions", burst=workload.burst)
    goes_on(rig, handled)
    heal()
    assert [it.starts for it in rig.of_role("worker")] == starts
    assert records(rig).ended == []
    assert not (rig.history / rude_handlers.RAISING).exists()


def test_broken_keys_are_replaced_or_named(rig: Rig, inject: Any, notes: list[str]) -> None:
    inject("broken-keys")()
    broken = int(notes[0].split()[0])
    assert broken > 0
    [told] = records(rig).diagnosed
    assert told.named is not None, told
    assert int(notes[-1].split()[0]) < broken, "most were replaced"
    [probe] = records(rig).probes
    assert probe.ran is not None
    assert execute(rig, "sea", "SELECT 1 FROM task_outbox WHERE type = 'nobody'") == []
    goes_on(rig)


def goes_on(rig: Rig, counted: Callable[[Rig], int] | None = None) -> None:
    """Twenty more are published, or handled."""
    counted = counted or published
    before = counted(rig)
    wait_for("the fleet goes on", lambda: counted(rig) > before + 20)


def handled(rig: Rig) -> int:
    [[found]] = execute(rig, "sea", "SELECT count(*) FROM inbox_messages WHERE processed_at IS NOT NULL")
    return int(found)


def test_every_kind_of_fault_is_tested_here(request: pytest.FixtureRequest) -> None:
    """Runs after all of the above; a part of them, or some in another process, tell nothing."""
    assert len(FAULTS) == 75
    chosen = {item.name.partition("[")[0] for item in request.session.items if item.path == request.path}
    everything = {name for name in globals() if name.startswith("test_")}
    if chosen == everything and not hasattr(request.config, "workerinput"):
        assert tested == {kind.name for kind in FAULTS.values() if not kind.name.startswith(OF_MANY_SERVERS)}


# --- the schedule ---


def run_until(nemesis: Nemesis, enough: Callable[[], bool]) -> None:
    """Strike until there is enough: how much happens in a second depends on the machine."""
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(nemesis.run, time.monotonic() + 300)
        try:
            wait_for("there is enough", lambda: run.done() or enough(), 120)
        finally:
            nemesis.stop()
        run.result()


def drawn(rig: Any, seed: int, count: int) -> list[Strike]:
    nemesis = Nemesis(rig, None, seed)  # type: ignore[arg-type]
    return [nemesis.draw() for _ in range(count)]


def test_a_seed_is_a_schedule_that_covers_every_kind_before_it_repeats_one(rig: Rig) -> None:
    first = drawn(rig, 3, 150)
    assert first == drawn(rig, 3, 150) != drawn(rig, 4, 150)
    kinds = [strike.kind.name for strike in first]
    possible = sorted(name for name, kind in FAULTS.items() if kind.targets(rig))
    count = len(possible)
    assert sorted(kinds[:count]) == possible
    firsts = [[strike.kind.name for strike in drawn(rig, seed, 5)] for seed in range(20)]
    assert {first.index(UPGRADE) for first in firsts} == {*range(5)}
    assert sorted(kinds[count : 2 * count]) == possible
    assert 0.4 < sum(strike.joins for strike in first) / 150 < 0.8


def test_a_kind_that_this_user_may_not_is_left_out_and_named(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig, "disks", SmallDisks())
    nemesis = Nemesis(rig, None, 1)  # type: ignore[arg-type]
    left_out = [name for name in nemesis.left_out if not name.startswith(OF_MANY_SERVERS)]
    assert left_out == ["postgres-disk-full", "nats-disk-full"]
    assert "disk-full" not in " ".join(nemesis.draw().kind.name for _ in range(len(FAULTS)))


def test_a_run_records_its_faults_and_leaves_none(rig: Rig, history: History) -> None:
    kinds = {"worker-freeze", "link-black-hole", "link-cut", "valkey-flush", "postgres-backends"}
    nemesis = Nemesis(rig, history, 11, every=(0.1, 0.2), hold=(0.2, 1.0), kinds=kinds)
    began = time.time()
    run_until(nemesis, lambda: kinds <= {fault.kind for fault in records(rig).faults})
    faults = records(rig).faults
    assert {fault.kind for fault in faults} == kinds
    assert sorted(fault.number for fault in faults) == list(range(1, len(faults) + 1))
    assert all(began <= fault.began <= fault.ended for fault in faults)
    assert {link.mode for link in rig.links.values()} == {Mode.PASS}
    rig.await_ready()


def test_faults_begin_while_others_last_and_never_meet(rig: Rig, history: History) -> None:
    kinds = {"link-delay", "link-black-hole", "worker-freeze", "worker-kill", "valkey-flush"}
    nemesis = Nemesis(rig, history, 4, every=(0.1, 0.3), hold=(0.5, 1.5), kinds=kinds)

    def pairs() -> list[tuple[Fault, Fault]]:
        faults = sorted(records(rig).faults, key=lambda fault: fault.began)
        return [
            (one, other)
            for place, one in enumerate(faults)
            for other in faults[place + 1 :]
            if one.began < other.began < one.ended
        ]

    run_until(nemesis, lambda: len(pairs()) > 5)
    assert all(one.target != other.target for one, other in pairs())
    assert any(other.began - one.began > 0.1 for one, other in pairs())
    faults = records(rig).faults
    windows = Windows(faults)
    assert max(windows.active(fault.began) for fault in faults) in {2, 3}
    rig.await_ready()


def test_a_fault_that_needs_everything_to_itself_meets_every_other(rig: Rig) -> None:
    hang, flush, cut = (
        Strike(FAULTS[name], FAULTS[name].targets(rig)[0], 0)
        for name in ("handler-hang", "valkey-flush", "link-cut")
    )
    assert hang.meets(flush)
    assert flush.meets(hang)
    assert not flush.meets(cut)
    assert cut.meets(cut)


def test_a_fault_is_healed_early_when_the_time_is_over(rig: Rig, history: History) -> None:
    nemesis = Nemesis(rig, history, 1, every=(0, 0), hold=(60, 60), kinds={"link-cut", "link-black-hole"})
    nemesis.run(time.monotonic() + 0.5)
    [fault, *more] = records(rig).faults
    assert max(one.ended for one in (fault, *more)) - fault.began < 60
    assert {link.mode for link in rig.links.values()} == {Mode.PASS}


def test_what_goes_wrong_with_a_fault_is_recorded_and_raised(rig: Rig, history: History) -> None:
    def broken(what: str, count: int) -> None:
        raise RuntimeError("no rows today")

    nemesis = Nemesis(rig, history, 1, every=(0, 0), kinds={"poison-rows"}, burst=broken)
    with pytest.raises(RuntimeError):
        nemesis.run(time.monotonic() + 5)
    [fault] = records(rig).faults
    assert "no rows today" in fault.note


def test_liveness_mode_takes_two_away_for_good_and_work_goes_on(
    rig: Rig, workload: Workload, history: History
) -> None:
    """The last test: the rig is poorer afterwards."""
    nemesis = Nemesis(rig, history, 1, every=(0.5, 1.0), hold=(1.0, 2.0), burst=workload.burst)

    def struck() -> set[str]:
        return {fault.kind for fault in records(rig).faults}

    with ThreadPoolExecutor() as pool:
        run = pool.submit(nemesis.run_liveness, time.monotonic() + 240)
        try:
            wait_for("it strikes", lambda: "valkey-flush" in struck() and struck() & {*IN_LIVENESS}, seconds=200)
        finally:
            nemesis.stop()
        run.result()
    before = published(rig)
    assert [len([p for p in rig.of_role(role) if p.running]) for role in ("worker", "scheduler")] == [1, 1]
    assert struck() - {*IN_LIVENESS} == {"worker-gone", "scheduler-gone", "valkey-flush"}
    wait_for("the fleet publishes", lambda: published(rig) > before + 20)
    assert [process.running for process in rig.processes.values() if not process.wanted] == [False, False]
