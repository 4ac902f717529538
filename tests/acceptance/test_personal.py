"""Personal values in a fleet: handlers read them, nothing that is stored shows them, a person can be forgotten."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay import Outbox
from tests.acceptance import personal_effects
from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.acceptance.personal_effects import digest
from tests.integration.personal_support import VARIABLES, is_hidden, order, payload, tables_hide
from tests.waiting import wait_for

PYTHON = "python:tests.acceptance.personal_effects"
ALL = ["from_vibespro", "on_loop", "in_chunks", "skips", "refuses"]
SUBSCRIPTION = """
[contexts.sea.subscriptions.{name}]
stream = "VIBESPRO_EVENTS"
filter_subject = "vibespro.event.>"
handler = "{handler}"
{more}
"""
ARCHIVE = """
[contexts.{name}.archive]
after = "8d"
directory = "{directory}"
"""


def subscriptions(service: str) -> str:
    wanted = [
        ("on_loop", PYTHON, ""),
        ("in_chunks", PYTHON, "chunk = 50"),
        ("skips", PYTHON, 'forgotten = "skip"'),
        ("refuses", PYTHON, 'forgotten = "dead"'),
        ("plain", f"{service}/plain", 'personal = "plain"'),
        ("encrypted", f"{service}/encrypted", ""),
    ]
    return "".join(SUBSCRIPTION.format(name=name, handler=it, more=more) for name, it, more in wanted)


@pytest.fixture
def personal(
    start_fleet: Callable[..., Fleet], handler: HandlerService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Fleet:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    service = f"http://127.0.0.1:{handler.port}"
    for name in ("vibespro", "sea"):
        (tmp_path / name).mkdir()
    archives = "".join(ARCHIVE.format(name=name, directory=tmp_path / name) for name in ("vibespro", "sea"))
    more = subscriptions(service) + archives
    fleet = start_fleet(handler=PYTHON, more=more, variables=VARIABLES)
    fleet.query("sea", personal_effects.TABLE)
    return fleet


def commit(fleet: Fleet, *subjects: str) -> list[str]:
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        events = [order(it, f"o-{number}") for number, it in enumerate(subjects)]
        return [str(id) for id in Outbox("vibespro").add_many(connection, events)]


def unfinished(fleet: Fleet) -> int:
    sql = "SELECT count(*) FROM inbox_messages WHERE processed_at IS NULL AND dead_lettered_at IS NULL"
    return int(fleet.query("sea", sql)[0][0])


def arrived(fleet: Fleet, ids: Sequence[str]) -> bool:
    """Whether all seven subscriptions have finished these messages."""
    sql = "SELECT count(*) FROM inbox_messages WHERE coalesce(source_id, message_id) = ANY(%s::uuid[])"
    return int(fleet.query("sea", sql, list(ids))[0][0]) == 7 * len(ids) and unfinished(fleet) == 0


def seen(fleet: Fleet, ids: Sequence[str]) -> dict[str, Counter[str]]:
    rows = fleet.query("sea", "SELECT subscription, digest FROM seen WHERE message_id = ANY(%s)", list(ids))
    found: dict[str, Counter[str]] = {}
    for subscription, it in rows:
        found.setdefault(subscription, Counter())[it] += 1
    return found


def emails(handler: HandlerService, ids: Sequence[str]) -> list[Any]:
    """What the service was given as e-mail addresses: the type of each."""
    calls = [call for id in ids for call in handler.calls_for(id)]
    return sorted(type(call.body["payload"]["email"]).__name__ for call in calls)


def nothing_shows(fleet: Fleet) -> bool:
    """Whether databases, streams and logs hide the person."""
    stored = [message.data for name in ("VIBESPRO_EVENTS", "SEA_DLQ") for message in fleet.messages(name)]
    logs = [path.read_bytes() for path in fleet.directory.glob("*.log")]
    return all(map(is_hidden, [*stored, *logs])) and all(map(tables_hide, fleet.urls.values()))


def exported(fleet: Fleet, subject: str) -> tuple[Counter[tuple[str, str, str]], list[Any]]:
    """How many rows of each context, kind and state are held about a person, and their payloads."""
    rows = [json.loads(line) for line in fleet.relay("export", subject).splitlines()]
    return Counter((row["context"], row["kind"], row["state"]) for row in rows), [row["payload"] for row in rows]


def archive(fleet: Fleet, directory: Path) -> None:
    """Make what is done old, and archive it."""
    fleet.query("vibespro", "UPDATE outbox_events SET published_at = published_at - interval '9 days'")
    older = ", ".join(f"{it} = {it} - interval '9 days'" for it in ("received_at", "processed_at"))
    fleet.query("sea", f"UPDATE inbox_messages SET {older}")
    fleet.relay("archive", "run")
    files = [gzip.decompress(path.read_bytes()) for path in directory.rglob("*.gz")]
    assert files
    assert all(map(is_hidden, files))


def test_handlers_read_what_nothing_shows_and_a_person_is_forgotten(
    personal: Fleet, handler: HandlerService, tmp_path: Path
) -> None:
    fleet = personal
    fleet.scheduler()
    worker = fleet.worker()
    ids = commit(fleet, "c-7", "c-8", "c-7")
    wait_for("all are handled", lambda: arrived(fleet, ids), 120)
    known = Counter({digest(payload("c-7")): 2, digest(payload("c-8")): 1})
    assert seen(fleet, ids) == dict.fromkeys(ALL, known)
    assert emails(handler, ids) == ["dict"] * 3 + ["str"] * 3
    assert nothing_shows(fleet)
    held, payloads = exported(fleet, "c-7")
    assert held == {("vibespro", "events", "plain"): 2, ("sea", "inbox", "plain"): 14}
    assert all(it == payload("c-7") for it in payloads)

    # Forgotten while messages are on their way: they wait in the outbox, and no process has kept the key.
    fleet.stop(worker)
    late = commit(fleet, "c-7", "c-8")
    [vibespro, sea] = json.loads(fleet.relay("forget", "c-7", "--yes", "--json", "--actor", "ann"))["contexts"]
    assert (len(vibespro["keys"]), vibespro["keys"][0]["by"], vibespro["already"]) == (1, "ann", False)
    assert sea["keys"] == []
    fleet.worker()
    wait_for("all are handled", lambda: arrived(fleet, late), 120)
    nulls = payload("c-7") | {"email": None, "address": {"street": None, "city": None}}
    forgotten, other = digest(nulls), digest(payload("c-8"))
    both, one = Counter([forgotten, other]), Counter([other])
    assert seen(fleet, late) == {name: one if name in ("skips", "refuses") else both for name in ALL}
    assert emails(handler, late) == ["NoneType", "dict", "dict", "str"]
    [(reason,)] = fleet.query("sea", "SELECT last_error FROM inbox_messages WHERE dead_lettered_at IS NOT NULL")
    assert reason.startswith("SUBJECT_FORGOTTEN")
    assert nothing_shows(fleet)
    held, payloads = exported(fleet, "c-7")
    dead = {("sea", "dead-letters", "forgotten"): 1}
    assert held == {("vibespro", "events", "forgotten"): 3, ("sea", "inbox", "forgotten"): 21} | dead
    assert all(it == nulls for it in payloads)

    # Again: the same certificate. A new event of the person has a new key.
    again = json.loads(fleet.relay("forget", "c-7", "--yes", "--json", "--actor", "bob"))["contexts"]
    assert again[0] == vibespro | {"already": True}
    deeds = fleet.query("vibespro", "SELECT actor, ids FROM audit_log WHERE action = 'personal.forget'")
    assert deeds == [("ann", [vibespro["keys"][0]["id"]])]
    new = commit(fleet, "c-7")
    wait_for("it is handled", lambda: arrived(fleet, new), 120)
    assert seen(fleet, new) == {name: Counter([digest(payload("c-7"))]) for name in ALL}

    # In the archive, too.
    archive(fleet, tmp_path)
    held, _ = exported(fleet, "c-7")
    assert held["vibespro", "archive outbox", "forgotten"] == 3
    assert held["vibespro", "archive outbox", "plain"] == 1
    assert held["sea", "archive inbox", "forgotten"] == 20
    assert held["sea", "archive inbox", "plain"] == 7
