"""Programs in Node, with the official NATS client and nothing of ours, beside a fleet: those of examples/node."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import httpx2
import psycopg
import pytest

from relay.adapters.http import sign
from relay.commands.check_handler import CASES, SampleMessage
from relay.devstack.ports import free_port
from tests.acceptance import nodejs
from tests.acceptance.fleet import Fleet
from tests.acceptance.produce import commit_one
from tests.acceptance.profiles import ALL, NAMES, Played, ProfileFleet, played
from tests.waiting import wait_for

SECRET = "first whsec_c2Vjb25k"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the installed programs."""
    directory = tmp_path_factory.mktemp("node") / "examples"
    if reason := nodejs.install(directory):
        pytest.skip(reason)
    return directory


@pytest.fixture(scope="module")
def fleet(node: Path, server_root: Path) -> Iterator[ProfileFleet]:
    """All profiles, with a scheduler and a worker."""
    directory = server_root / "node-profiles"
    with ProfileFleet(directory) as fleet:
        fleet.scheduler()
        fleet.worker()
        yield fleet
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(params=NAMES)
def profile(request: pytest.FixtureRequest) -> Played:
    return played(request.param)


def test_a_node_program_tells_no_password_to_a_server_without_tls(node: Path) -> None:
    heard: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(
                b'INFO {"server_id": "x", "max_payload": 1000, "auth_required": true, "headers": true}\r\n'
            )
            while data := connection.recv(4096):
                heard.append(data)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as aside:
        served = aside.submit(serve, listener)
        address = f"tls://relay:s3cret@127.0.0.1:{listener.getsockname()[1]}"
        program = f"""
            const {{ connectToNats }} = await import("./connection.js");
            await connectToNats("{address}").catch((error) => console.log(error.message));
        """
        done = subprocess.run(
            ["node", "--input-type=module", "-e", program],
            cwd=node,
            capture_output=True,
            text=True,
            timeout=nodejs.RUN_SECONDS,
            check=False,
        )
        served.result(nodejs.RUN_SECONDS)
    assert b"s3cret" not in b"".join(heard), done.stdout + done.stderr


#: Messages of other numbers go to streams that the consumer does not read: some profiles have several.
NUMBERS = [number for number in range(1000, 1100) if number % 3 and number % 4]


def record(fleet: ProfileFleet, one: Played, numbers: Sequence[int]) -> list[str]:
    """Commit messages of a profile; returns their ids."""
    with psycopg.connect(fleet.urls[one.producer.CONTEXT], autocommit=True) as connection:
        found = []
        for number in numbers:
            with connection.transaction():
                found.append(one.producer.record(connection, number))
        return found


def test_a_node_producer_reaches_the_python_handlers(fleet: ProfileFleet, node: Path, profile: Played) -> None:
    ids = nodejs.run(node, {"NATS_URL": fleet.nats.url}, "producer.js", profile.name, "20")
    assert len(set(ids)) == 20
    wait_for("each took effect", lambda: set(ids) <= fleet.effects(profile).keys())
    assert {id: fleet.effects(profile)[id] for id in ids} == dict.fromkeys(ids, 1)
    wait_for("each is acknowledged", lambda: fleet.waiting(profile) == 0)
    for other in ALL:
        if other != profile:
            assert not fleet.effects(other).keys() & set(ids), other.name


def test_a_node_consumer_reads_what_is_published_once_each(
    fleet: ProfileFleet, node: Path, profile: Played
) -> None:
    done = node / f"consumed-{profile.name}.jsonl"
    program = ("consumer.js", profile.name, done.name)
    with nodejs.Program(node, {"NATS_URL": fleet.nats.url}, *program) as consumer:
        ids = record(fleet, profile, NUMBERS[:20])
        wait_for("it has read all", lambda: set(ids) <= {line["id"] for line in nodejs.effects(done)})
        assert consumer.stop() == 0
    before, stored = len(nodejs.effects(done)), fleet.stored(profile)
    # What an operator publishes once more is the same event, also for one that was away meanwhile.
    context = profile.producer.CONTEXT
    fleet.relay("outbox", "replay", "--context", context, "--since", "1d", "--yes")
    [(replayed,)] = fleet.query(context, "SELECT count(*) FROM outbox_events")
    wait_for("all are stored once more", lambda: fleet.stored(profile) == stored + replayed)
    last = record(fleet, profile, NUMBERS[20:21])
    with nodejs.Program(node, {"NATS_URL": fleet.nats.url}, *program) as consumer:
        wait_for("it has read the last", lambda: last[0] in {line["id"] for line in nodejs.effects(done)})
        assert consumer.stop() == 0
    counted = Counter(line["id"] for line in nodejs.effects(done))
    assert set(ids) | set(last) <= counted.keys()
    assert set(counted.values()) == {1}
    assert len(counted) == before + 1


TWO_SOURCES = """
import { cloudevents } from "./profiles/cloudevents.js";
const headers = { keys: () => ["content-type"], get: () => "application/cloudevents+json" };
for (const source of ["/a", "/a", "/b"]) {
  const event = { specversion: "1.0", id: "1", source, type: "t", data: {} };
  console.log(cloudevents.read({ headers, json: () => event }).key.replace(" ", "|"));
}
"""


def test_a_node_consumer_takes_events_of_two_sources_with_one_id_for_two(node: Path) -> None:
    (node / "sources.js").write_text(TWO_SOURCES)
    one, copy, other = nodejs.run(node, {}, "sources.js")
    assert one == copy != other


def test_a_node_program_asks_a_query(fleet: ProfileFleet, node: Path) -> None:
    record(fleet, played("sr"), [2000])

    def ask(loop_id: object) -> str:
        question = json.dumps({"loop_id": loop_id})
        return " ".join(
            nodejs.run(node, {"NATS_URL": fleet.nats.url}, "query.js", "sr.queries.loop.find", question)
        )

    assert json.loads(ask("loop_2000")) == {"loop_id": "loop_2000", "goal": "goal number 2000"}
    assert ask("loop_2001") == "null"
    with pytest.raises(AssertionError, match="refused: INVALID_QUERY"):
        ask(None)


def called(url: str, id: str, key: str) -> int:
    """The answer to a call for a message of any id, known by its key."""
    body = SampleMessage(event_type="vibe_created", payload={"title": key}).body(uuid4(), message_id=id)
    signed = sign(SECRET, key, int(time.time()), body)
    return httpx2.post(url, content=body, headers={"idempotency-key": key, **signed}).status_code


def test_a_node_handler_keeps_the_contract(start_fleet: Callable[..., Fleet], node: Path) -> None:
    port, done = free_port(), node / "handled.jsonl"
    url = f"http://127.0.0.1:{port}/handle"
    variables = {"PORT": str(port), "HANDLER_SECRET": SECRET}
    fleet = start_fleet(handler=url, more=f'signing_secret = "{SECRET}"')
    with nodejs.Program(node, variables, "handler.js", done.name) as handler:
        payload = ("--event-type", "vibe_created", "--payload", str(node / "vibe.json"))
        told = fleet.relay("handler", "check", url, *payload, "--secret", SECRET, "--json")
        assert len(json.loads(told)["cases"]) == len(CASES), told
        assert [called(url, "evt_1", key) for key in ("sha256:1", "sha256:2", "sha256:1")] == [200, 200, 409]
        fleet.scheduler()
        fleet.worker()
        ids = {str(commit_one(fleet.urls["vibespro"], f"v{n}", title=f"vibe {n}")) for n in range(30)}
        poison = commit_one(fleet.urls["vibespro"], title=7)
        wait_for("all are handled", lambda: ids <= {line["id"] for line in nodejs.effects(done)})
        wait_for("one is a dead letter", lambda: fleet.inbox(poison).get("dead_lettered_at"))
        wait_for("all are acknowledged", lambda: fleet.ack_pending() == 0)
        assert fleet.inbox(poison)["last_error"] == "HTTP 422: a vibe without title"
        assert set(Counter(line["key"] for line in nodejs.effects(done)).values()) == {1}
        assert handler.stop() == 0
