"""A person's address goes everywhere, is forgotten, and is looked for from outside: in all bytes that are kept."""

from __future__ import annotations

import base64
import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from nats.js.errors import NotFoundError

from relay import Event, Outbox
from tasks import schedule
from tests.acceptance.fleet import Fleet
from tests.acceptance.scan_effects import mail
from tests.acceptance.test_personal import ARCHIVE
from tests.integration.personal_support import FIELDS, VARIABLES
from tests.waiting import wait_for

PYTHON = "python:tests.acceptance.scan_effects"
MODULES = "tasks.actors,consumer.actors,tests.acceptance.scan_effects"
ANN, JO = "ann.hidden@example.org", "joann.hidden@example.org"
STREAMS = ("VIBESPRO_EVENTS", "SEA_EVENTS", "VIBESPRO_DLQ", "SEA_DLQ", "RELAY_ADVISORIES")


@pytest.fixture
def fleet(start_fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fleet:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    for name in ("vibespro", "sea"):
        (tmp_path / name).mkdir()
    archives = "".join(ARCHIVE.format(name=name, directory=tmp_path / name) for name in ("vibespro", "sea"))
    more = 'error_detail = "text"\n' + archives
    variables = {**VARIABLES, "RELAY_ACTOR_MODULES": MODULES, "RELAY_CONTEXTS__SEA__ERROR_DETAIL": "text"}
    return start_fleet(handler=PYTHON, more=more, variables=variables)


def order(email: str, number: int, **values: Any) -> Event:
    more = values.pop("payload", {})
    payload = {
        "email": email,
        "customer": {"email": email, "name": "Ann"},
        "lines": [1.5, f"for {email}!"],
        **more,
    }
    given: dict[str, Any] = {"event_type": "order_placed", "aggregate_id": f"o-{number}", **values}
    return Event(aggregate_type="order", payload=payload, **given)


def declared(email: str) -> Event:
    payload = {"customer_id": "c-7", "email": email, "address": {"street": "7 Hidden Lane", "city": "Ulm"}}
    return Event(
        event_type="order_declared", aggregate_type="order", aggregate_id="d", payload=payload, personal=FIELDS
    )


def commit(fleet: Fleet, *events: Event) -> list[str]:
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        return [str(it) for it in Outbox("vibespro").add_many(connection, events)]


UNRECORDED = """
SELECT message_id FROM inbox_messages WHERE dead_lettered_at IS NOT NULL EXCEPT SELECT message_id FROM dead_letters
"""


def is_done(fleet: Fleet) -> bool:
    """Whether nothing waits: but one message that a test holds up, and a task of tomorrow.

    What is published leaves the outbox first: JetStream is asked before the inbox.
    """
    if fleet.query("vibespro", "SELECT count(*) FROM outbox_events WHERE published_at IS NULL") != [(0,)]:
        return False
    if fleet.unread() != 0 or fleet.ack_pending() != 0:
        return False
    counts = [
        ("sea", "SELECT count(*) FROM inbox_messages WHERE processed_at IS NULL AND dead_lettered_at IS NULL", 0),
        ("sea", "SELECT count(*) FROM task_outbox WHERE finished_at IS NULL AND available_at IS NULL", 0),
        ("sea", f"SELECT count(*) FROM ({UNRECORDED}) AS it", 0),
        ("sea", "SELECT count(*) FROM dead_letters WHERE letter_seq IS NULL", 0),
    ]
    return all(fleet.query(name, sql) == [(wanted,)] for name, sql, wanted in counts)


# --- from outside: raw SQL, raw NATS, bytes of files ---


def kept(fleet: Fleet, archives: Path) -> Iterator[tuple[str, bytes]]:
    """All bytes that are kept anywhere, each with its place."""
    for context, url in fleet.urls.items():
        for place, value in cells(url):
            yield f"{context}.{place}", value
    for stream in STREAMS:
        for seq, message in enumerate(messages(fleet, stream)):
            yield f"{stream}.{seq}", message
    yield from jobs(fleet)
    for path in [*archives.rglob("*.*")]:
        if path.is_file():
            yield path.name, path.read_bytes()
        if path.suffix == ".gz":
            yield f"{path.name}, unpacked", gzip.decompress(path.read_bytes())
    for path in (fleet.directory / "nats").rglob("*.blk"):
        yield f"block {path}", path.read_bytes()


def cells(url: str) -> Iterator[tuple[str, bytes]]:
    """Each value of each column of each table of a database."""
    with psycopg.connect(url, autocommit=True) as connection:
        columns = connection.execute(
            "SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns"
            " WHERE table_schema NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        for schema, table, column, kind in columns:
            text = f'"{column}"' if kind == "bytea" else f"convert_to(\"{column}\"::text, 'UTF8')"
            for (value,) in connection.execute(f'SELECT {text} FROM "{schema}"."{table}"'):  # type: ignore[call-overload]
                yield f"{table}.{column}", value or b""


def jobs(fleet: Fleet) -> Iterator[tuple[str, bytes]]:
    """All that is in Redis."""
    with redis.Redis.from_url(fleet.valkey.url) as client:
        readers: dict[bytes, Callable[[bytes], Any]] = {
            b"string": client.get,
            b"hash": client.hgetall,
            b"list": lambda it: client.lrange(it, 0, -1),
            b"set": client.smembers,
            b"zset": lambda it: client.zrange(it, 0, -1),
        }
        for key in client.scan_iter():
            kind = client.type(key)
            yield f"redis.{key!r}", repr((key, readers[kind](key) if kind in readers else None)).encode()


def messages(fleet: Fleet, stream: str) -> list[bytes]:
    """Each message of a stream: its subject, headers and body."""

    async def read(js: Any) -> list[bytes]:
        state = (await js.stream_info(stream)).state
        found = []
        for seq in range(max(state.first_seq, 1), state.last_seq + 1):
            try:
                raw = await js.get_msg(stream, seq)
            except NotFoundError:
                continue
            found.append(b"\n".join([raw.subject.encode(), str(raw.headers).encode(), raw.data or b""]))
        return found

    return fleet.jetstream(read)


def has(data: bytes, value: str) -> bool:
    """Whether bytes hold the value, as it is, in hexadecimal digits or in base64 of any offset."""
    plain = value.encode()
    shifted = [base64.b64encode(bytes(it) + plain)[4:-4] for it in range(3)]
    return any(it in data for it in (plain, plain.hex().encode(), *shifted))


def places(fleet: Fleet, archives: Path, value: str) -> set[str]:
    rest = value.removeprefix("jo")
    others = value == ANN
    found = set()
    for place, data in kept(fleet, archives):
        # The address of Jo has Ann's in it.
        looked = data.replace(JO.encode(), b"").replace(JO.encode().hex().encode(), b"") if others else data
        if has(looked, rest if not others else value):
            found.add(place.split(".")[1] if "." in place and not place.startswith("block") else place)
    return found


def rows(fleet: Fleet) -> dict[str, list[Any]]:
    """The rows that are not about Ann."""
    tables = {
        "vibespro": ("outbox_events",),
        "sea": ("inbox_messages", "task_outbox", "dead_letters", "parked_keys", "subject_keys"),
    }
    return {
        name: [
            fleet.query(
                name,
                # Of a letter it may be told meanwhile.
                f"SELECT (to_jsonb(t) - 'alerted_at')::text FROM {table} AS t"
                " WHERE t::text NOT LIKE %s ORDER BY 1",
                "%redacted%",
            )
            for table in names
        ]
        for name, names in tables.items()
    }


def archive(fleet: Fleet) -> None:
    """Make what is done old, and archive it."""
    for context, table, *columns in (
        ("vibespro", "outbox_events", "published_at"),
        ("sea", "inbox_messages", "received_at", "processed_at"),
        ("sea", "task_outbox", "created_at", "finished_at"),
    ):
        older = ", ".join(f"{it} = {it} - interval '9 days'" for it in columns)
        fleet.query(context, f"UPDATE {table} SET {older}")
    fleet.relay("archive", "run")


def scan(fleet: Fleet, *arguments: str) -> Any:
    return json.loads(fleet.relay("forget", "--scan", "--value", ANN, "--json", "--actor", "bob", *arguments))


def test_no_byte_of_a_forgotten_address_is_left_and_all_else_verifies(fleet: Fleet, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    fleet.scheduler()
    fleet.worker()
    first = commit(fleet, order(ANN, 1), order(JO, 2), declared(ANN), order(ANN, 3, payload={"stumble": True}))
    with psycopg.connect(fleet.urls["sea"]) as connection:
        schedule(connection, mail, {"email": ANN})
        schedule(connection, mail, {"email": JO})
    wait_for("all is done", lambda: is_done(fleet))
    archive(fleet)
    assert fleet.query("vibespro", "SELECT count(*) FROM outbox_events") == [(0,)]
    commit(
        fleet,
        order(ANN, 4),
        order(ANN, 5, payload={"refuse": True}),
        order(JO, 6, payload={"refuse": True}),
        order(ANN, 7, payload={"stumble": True}),
        order(ANN, 8, aggregate_id=ANN, payload={ANN: {"at": ANN}}),
        order(JO, 9),
        declared(ANN),
    )
    with psycopg.connect(fleet.urls["sea"]) as connection:
        schedule(connection, mail, {"email": ANN, "refuse": True})
        schedule(connection, mail, {"email": ANN}, delay=timedelta(days=1))
        schedule(connection, mail, {"email": JO, "refuse": True})
    wait_for("all is done", lambda: is_done(fleet))
    [(held,)] = [commit(fleet, order(ANN, 10, payload={"until_gone": str(hold), "refuse": True}))]
    wait_for("a call is in work", lambda: fleet.inbox(held).get("claimed_until"))

    before = places(fleet, tmp_path, ANN)
    assert {"outbox_events", "inbox_messages", "task_outbox", "dead_letters"} <= before
    assert {it.split(".")[0] for it, data in kept(fleet, tmp_path) if has(data, ANN)} >= set(
        STREAMS[:1] + STREAMS[3:4]
    )
    others = rows(fleet)
    counted = scan(fleet, "--dry-run")
    assert places(fleet, tmp_path, ANN) == before
    assert {it["place"] for it in counted["found"]} >= {
        "outbox_events",
        "inbox_messages",
        "task_outbox",
        "dead_letters",
        "stream VIBESPRO_EVENTS",
        "stream SEA_DLQ",
        "archive outbox",
        "archive inbox",
        "archive tasks",
    }
    lines = fleet.relay("export", "--scan", "--value", ANN).splitlines()
    assert len(lines) == sum(it["rows"] for it in counted["found"])
    assert all(ANN in line for line in lines)

    command = [sys.executable, "-c", "from relay.cli import main; main()", "forget", "--scan"]
    command += ["--value", ANN, "--json", "--yes", "--actor", "bob"]
    with subprocess.Popen(command, env=fleet.environment, stdout=subprocess.PIPE) as process:
        # The call in work still knows the address, and writes it once more.
        wait_for("its row is redacted", lambda: b"(redacted)" in fleet.inbox(held)["body"])
        hold.unlink()
        answer = process.communicate(timeout=240)[0]
    certificate = json.loads(answer)
    assert process.returncode == 0, certificate
    assert (certificate["complete"], certificate["by"], certificate["earlier"]) == (True, "bob", [])
    fleet.relay("forget", "c-7", "--yes")
    wait_for("all is done", lambda: is_done(fleet))
    assert places(fleet, tmp_path, ANN) == set()

    # All else stands as it was, and is verified.
    assert JO in str(rows(fleet))
    assert "joann" in str(others)
    assert {str(it) for table in others["sea"] for it in table if "joann" in str(it)} <= {
        str(it) for table in rows(fleet)["sea"] for it in table
    }
    assert places(fleet, tmp_path, JO) >= {"outbox_events", "inbox_messages"}
    fleet.relay("archive", "verify")
    streams = json.loads(fleet.relay("reconcile", "--json"))
    assert [it["tail"]["count"] + it["middle"]["count"] for it in streams["streams"]] == [0] * len(
        streams["streams"]
    )
    assert all(it["missing"] == [] for it in streams["inboxes"])
    assert json.loads(fleet.relay("reconcile", "--producer", "--json"))["streams"] is not None
    fleet.relay("archive", "restore", first[0], "--context", "vibespro", "--yes")
    assert places(fleet, tmp_path, ANN) == set()

    # Again: nothing is found, and the first certificate is named.
    again = scan(fleet, "--yes")
    assert (again["counts"], again["complete"], len(again["earlier"])) == ([], True, 1)
    deeds = fleet.query(
        "sea", "SELECT actor, ids, about FROM audit_log WHERE action = 'personal.redact' ORDER BY id"
    )
    assert [(actor, ids) for actor, ids, _ in deeds[:2]] == [("bob", [certificate["id"]])] * 2
    assert deeds[1][2]["counts"]["inbox_messages"] > 0
