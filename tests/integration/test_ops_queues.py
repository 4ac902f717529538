"""The queues in Redis as operators see them, over HTTP and on the command line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import dramatiq
import pytest

from relay import jobs
from relay.adapters.dramatiq.broker import RelayBroker, create_broker
from relay.bus import QueryBus
from relay.devstack import NatsServer, ValkeyServer
from relay.domain.tasks import TaskRef
from relay.ops.queues import ListQueues, answer_for_queues
from relay.ops.requests import ListTaskQueues
from tests.integration.console_pages import Browser
from tests.integration.ops_api import Api, configured, serving
from tests.integration.publishing import query
from tests.integration.tasking import Mail, Tasks
from tests.integration.test_cli_operating import Shell
from tests.unit.ops_support import USERS

pytestmark = pytest.mark.anyio

HANDLE = jobs.HANDLE_QUEUE


@pytest.fixture
def namespace() -> str:
    return f"test-{uuid4().hex}"


@pytest.fixture
def broker(valkey: ValkeyServer, namespace: str) -> RelayBroker:
    return create_broker(valkey.url, namespace=namespace, middleware=[])


@pytest.fixture
async def api(
    database_url: str, nats_server: NatsServer, valkey: ValkeyServer, namespace: str
) -> AsyncIterator[Api]:
    more = {"redis_namespace": namespace, "ops": {"users": USERS}}
    async with serving(configured(database_url, nats_server.url, valkey.url, **more)) as api:
        yield api


@pytest.fixture
def shell(
    tmp_path: Path, database_url: str, valkey: ValkeyServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> Shell:
    shell = Shell(tmp_path, database_url)
    shell._environment |= {"REDIS_URL": valkey.url, "RELAY_REDIS_NAMESPACE": namespace}
    return shell


def handling(context: str = "sea", subscription: str = "from_upstream") -> dramatiq.Message[Any]:
    return jobs.handle(context, subscription, [str(uuid4())])


def kill(broker: RelayBroker, *messages: dramatiq.Message[Any], queue: str = HANDLE) -> list[str]:
    """Have jobs die in a worker; returns their ids, the last that died first."""
    broker.enqueue_many(messages)
    consumer, ids = broker.consume(queue, prefetch=10, timeout=100), list[str]()
    for _ in messages:
        taken = next(consumer)
        ids.append(taken.options["redis_message_id"])
        consumer.nack(taken)
    consumer.close()
    return ids


def send(mail: Mail) -> None:
    """A task's function, which no test runs."""


def counts(found: list[dict[str, Any]], queue: str) -> dict[str, int]:
    [row] = [it for it in found if queue in it.values()]
    return {name: count for name, count in row.items() if count != queue}


async def test_each_queue_says_what_waits_is_delayed_in_flight_and_dead(
    api: Api, broker: RelayBroker, database_url: str
) -> None:
    kill(broker, handling(), handling())
    broker.enqueue_many([handling() for _ in range(4)])
    broker.enqueue(handling(), delay=60_000)
    consumer = broker.consume(HANDLE, prefetch=1, timeout=100)
    assert next(consumer)
    # A worker without capacity for a share puts its jobs aside: they wait all the same.
    aside = f"{broker.namespace}:{HANDLE}.deferred"
    broker.client.sadd(aside, "sea/from_upstream")
    broker.client.rpush(f"{aside}:sea/from_upstream", broker.client.lpop(f"{broker.namespace}:{HANDLE}"))
    found = await api.get("/queues", user="reader")
    assert [it["name"] for it in found] == [*jobs.QUEUES, "relay-task-default"]
    assert counts(found, HANDLE) == {"waiting": 3, "delayed": 1, "in_flight": 1, "dead": 2}
    assert counts(found, jobs.PULL_QUEUE) == {"waiting": 0, "delayed": 0, "in_flight": 0, "dead": 0}
    consumer.close()


async def test_queues_of_tasks_are_known_from_the_tasks(api: Api, broker: RelayBroker, database_url: str) -> None:
    tasks = Tasks(database_url)
    tasks.register(send)
    tasks.schedule(Mail(n=1), queue="bulk")
    broker.enqueue_many([jobs.run_task("sea", TaskRef(uuid4(), "mail", "bulk", 50))])
    found = await api.get("/queues", user="reader")
    assert counts(found, "relay-task-bulk")["waiting"] == 1


INVENTED = (
    "INSERT INTO task_outbox (id, type, queue, payload, correlation_id) "
    "SELECT gen_random_uuid(), 'mail', 'q' || n || repeat('x', CASE WHEN mod(n, 2) = 0 THEN 2000 ELSE 5 END), "
    "'{}', gen_random_uuid() "
    "FROM generate_series(1, 3000) AS n"
)


async def test_invented_names_of_queues_are_shown_together(
    api: Api, broker: RelayBroker, shell: Shell, database_url: str
) -> None:
    query(database_url, INVENTED)
    broker.enqueue_many([jobs.run_task("sea", TaskRef(uuid4(), "mail", "q99xxxxx", 50))])
    found = await api.get("/queues", user="reader")
    assert len(found) == len(jobs.QUEUES) + 1 + 100 + 1
    assert counts(found, "relay-task-q99xxxxx")["waiting"] == 1, "one with jobs comes first"
    assert "2900" in found[-1]["name"]
    assert sum(len(it["name"]) for it in found) < 5_000
    assert len(await asyncio.to_thread(shell, "queues", "list", status=0)) < 50_000


async def test_contexts_are_asked_side_by_side(
    database_url: str, nats_server: NatsServer, valkey: ValkeyServer, namespace: str
) -> None:
    """One after the other, each database that does not answer would take its time-out."""
    settings = configured(database_url, nats_server.url, valkey.url, redis_namespace=namespace)
    asked, bus = set[str](), QueryBus()
    everybody = asyncio.Event()

    @bus.handles(ListTaskQueues)
    async def wait_for_the_others(query: ListTaskQueues) -> Sequence[str]:
        asked.add(query.context)
        if asked == {*settings.contexts}:
            everybody.set()
        await everybody.wait()
        return [query.context]

    async with asyncio.timeout(60):
        found = await answer_for_queues(bus, settings).ask_async(ListQueues())
    assert {"relay-task-sea", "relay-task-quiet"} <= {queue.name for queue in found.unwrap()}


async def test_dead_jobs_are_listed_by_the_time_of_their_death_and_delayed_ones_by_what_is_due(
    api: Api, broker: RelayBroker
) -> None:
    dead = kill(broker, *(handling() for _ in range(3)))
    page = await api.get(f"/queues/{HANDLE}/jobs", params={"limit": 2}, user="reader")
    rest = await api.get(f"/queues/{HANDLE}/jobs", params={"limit": 2, "after": page["next"]}, user="reader")
    assert {it["id"] for it in (*page["items"], *rest["items"])} == {*dead}
    assert (page["total"], rest["next"]) == (3, None)
    assert [it["at"] for it in page["items"]] == sorted((it["at"] for it in page["items"]), reverse=True)
    [first, *_] = page["items"]
    assert (first["actor"], first["share"]) == (jobs.HANDLE_MESSAGE, "sea/from_upstream")
    assert "args" not in first
    for delay in (60_000, 30_000):
        broker.enqueue(handling(), delay=delay)
    later = await api.get(f"/queues/{HANDLE}/jobs", params={"state": "delayed"}, user="reader")
    assert (len(later["items"]), later["total"], later["next"]) == (2, 2, None)
    assert later["items"][0]["at"] < later["items"][1]["at"]


async def test_the_arguments_of_jobs_need_the_right_to_payloads(api: Api, broker: RelayBroker) -> None:
    message = handling()
    kill(broker, message)
    path, asked = f"/queues/{HANDLE}/jobs", {"args": True}
    assert (await api.get(path, 403, params=asked, user="operator"))["error"]["code"] == "NO_PAYLOADS"
    [job] = (await api.get(path, params=asked, user="auditor"))["items"]
    assert job["args"] == list(message.args)


async def test_a_dead_job_is_requeued_with_new_attempts_and_its_share(
    api: Api, broker: RelayBroker, database_url: str
) -> None:
    message = handling().copy(options={"retries": 5, "eta": 1, "traceback": "x"})
    [first, second] = kill(broker, message, handling("elsewhere"))
    path = f"/queues/{HANDLE}/requeue"
    assert (await api.post(path, {"ids": [first]}, 403, user="reader"))["error"]["code"] == "NOT_ALLOWED"
    outcome = await api.post(path, {"ids": [first, "none"], "note": "mended"}, user="operator")
    assert (outcome["done"], outcome["refused"][0]["error"]["code"]) == ([first], "UNKNOWN_MESSAGE")
    consumer = broker.consume(HANDLE, prefetch=5, timeout=100)
    taken = next(consumer)
    assert (taken.args, taken.options["share"]) == (message.args, "sea/from_upstream")
    assert taken.options["redis_message_id"].startswith("sea/from_upstream/again|")
    assert not {"retries", "eta", "traceback"} & {*taken.options}
    consumer.ack(taken)
    consumer.close()
    again = await api.post(path, {"ids": [first]}, 404, user="operator")
    assert again["error"]["code"] == "UNKNOWN_MESSAGE"
    assert (await api.post(path, {"all": True}, user="operator"))["done"] == [second]
    assert counts(await api.get("/queues", user="reader"), HANDLE) == {
        **dict.fromkeys(("delayed", "in_flight", "dead"), 0),
        "waiting": 1,
    }
    rows = query(database_url, "SELECT actor, action, ids, note FROM audit_log ORDER BY id")
    assert [tuple(row.values()) for row in rows] == [
        ("operator", "queues.requeue", [f"{HANDLE}/{first}"], "mended"),
        ("operator", "queues.requeue", [f"{HANDLE}/{second}"], None),
    ]


async def test_dead_jobs_are_deleted_also_unreadable_ones_and_not_more_than_the_limit(
    api: Api, broker: RelayBroker, database_url: str
) -> None:
    ids = kill(broker, *(handling() for _ in range(3)))
    broker.client.hset(f"{broker.namespace}:{HANDLE}.XQ.msgs", ids[0], b"\x80no JSON")
    path = f"/queues/{HANDLE}"
    refused = await api.post(f"{path}/delete", {"all": True, "limit": 2}, 409, user="operator")
    assert refused["error"]["code"] == "TOO_MANY"
    unreadable = await api.post(f"{path}/requeue", {"ids": [ids[0]]}, 409, user="operator")
    assert unreadable["error"]["code"] == "UNREADABLE_MESSAGE"
    assert query(database_url, "SELECT count(*) AS n FROM audit_log")[0]["n"] == 0
    assert sorted((await api.post(f"{path}/delete", {"all": True}, user="operator"))["done"]) == sorted(ids)
    assert (await api.get(f"{path}/jobs", user="reader"))["total"] == 0
    [entry] = await api.get("/contexts/sea/audit", user="reader")
    assert (entry["action"], entry["count"]) == ("queues.delete", 3)


async def dead(api: Api) -> list[str]:
    page = await api.get(f"/queues/{HANDLE}/jobs?state=dead", user="reader")
    return [it["id"] for it in page["items"]]


@pytest.mark.parametrize("which", ["all", "ticked"])
@pytest.mark.parametrize("verb", ["requeue", "delete"])
async def test_a_form_does_what_was_counted_and_does_it_once(
    api: Api, broker: RelayBroker, database_url: str, verb: str, which: str
) -> None:
    browser, path = Browser(api.client, "operator"), f"/queues/{verb}"
    counted = kill(broker, *(handling() for _ in range(3)))
    chosen = {"all": "1"} if which == "all" else {"ids": counted[:2]}
    done = counted if which == "all" else counted[:2]
    asked = await browser.open(path, queue=HANDLE, **chosen)
    assert f"{len(done)} dead jobs of {HANDLE}?" in asked.text
    late = kill(broker, handling(), handling())
    answer = await browser.send(path, [*asked.fields, ("note", "mended")], 303)
    assert {*await dead(api)} == {*late, *counted} - {*done}
    deed = answer.headers["location"]
    # By Back and a press, or a reload: the same page, and nothing is done to what died since.
    for _ in range(2):
        assert (await browser.send(path, asked.fields, 303)).headers["location"] == deed
    assert {*await dead(api)} == {*late, *counted} - {*done}
    page = await browser.open(deed)
    assert (page.outcome, "mended" in page.text) == ((str(len(done)), "0"), True)
    [entry] = query(database_url, "SELECT action, ids FROM audit_log")
    assert (entry["action"], {*entry["ids"]}) == (f"queues.{verb}", {f"{HANDLE}/{id}" for id in done})


async def test_a_form_says_which_counted_jobs_are_not_dead_any_more(
    api: Api, broker: RelayBroker, database_url: str
) -> None:
    browser = Browser(api.client, "operator")
    counted = kill(broker, handling(), handling())
    first, second, third = [await browser.open("/queues/delete", queue=HANDLE, all="1") for _ in range(3)]
    one = await browser.open("/queues/delete", queue=HANDLE, ids=counted[:1])
    assert (await browser.send("/queues/delete", one.fields)).outcome == ("1", "0")
    assert (await browser.send("/queues/delete", first.fields)).outcome == ("1", "1")
    assert (await browser.send("/queues/delete", second.fields, 404)).outcome == ("0", "2")
    await browser.send("/queues/requeue", third.fields, 422)
    assert "no job of these is dead" in (await browser.open("/queues/delete", 404, queue=HANDLE, all="1")).text
    assert len(query(database_url, "SELECT * FROM audit_log")) == 2


async def test_an_act_on_jobs_of_several_contexts_is_one_deed(
    database_url: str, nats_server: NatsServer, valkey: ValkeyServer, namespace: str, broker: RelayBroker
) -> None:
    """Most are of land, which records the whole act; sea records its own."""
    contexts = {name: {"database_url": database_url} for name in ("sea", "land")}
    more: dict[str, Any] = {"redis_namespace": namespace, "contexts": contexts}
    kill(broker, handling("land"), handling("land"), handling("sea"))
    async with serving(configured(database_url, nats_server.url, valkey.url, **more)) as api:
        browser = Browser(api.client)
        asked = await browser.open("/queues/requeue", queue=HANDLE, all="1")
        deed = (await browser.send("/queues/requeue", asked.fields, 303)).headers["location"]
        assert deed.startswith("/contexts/land/audit/")
        assert (await browser.open(deed)).outcome == ("3", "0")
    found = query(database_url, "SELECT cardinality(ids) AS n FROM audit_log ORDER BY id")
    assert [it["n"] for it in found] == [3, 1]


async def test_a_queue_of_nobody_is_refused(api: Api) -> None:
    for name in ("default", "relay-task-", "relay-handle.XQ", "relay-task-A"):
        refused = await api.get(f"/queues/{name}/jobs", 404, user="reader")
        assert refused["error"]["code"] == "UNKNOWN_QUEUE"
    assert (await api.post("/queues/relay-pull/delete", {}, 422, user="operator"))["error"]["code"]


async def test_the_command_line_shows_requeues_and_deletes(shell: Shell, broker: RelayBroker) -> None:
    ids = kill(broker, *(handling() for _ in range(3)))
    assert counts(shell.json("queues", "list"), HANDLE)["dead"] == 3
    listed = shell("queues", "jobs", HANDLE, "--limit", "2")
    assert "2 of 3; more: --after 2" in listed
    assert "handle_message" in listed
    assert {it["id"] for it in shell.json("queues", "jobs", HANDLE)} == {*ids}
    assert shell.json("queues", "jobs", HANDLE, "--args")[0]["args"][:2] == ["sea", "from_upstream"]
    assert "No delayed jobs in relay-handle." in shell("queues", "jobs", HANDLE, "--state", "delayed")
    assert shell("queues", "requeue", HANDLE, ids[0], "--actor", "bob") == f"{HANDLE}: requeued 1\n"
    assert "UNKNOWN_MESSAGE" in shell("queues", "delete", HANDLE, ids[0], status=1)
    assert shell("queues", "delete", HANDLE, "--all", "--yes") == f"{HANDLE}: deleted 2\n"
