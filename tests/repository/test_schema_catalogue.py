"""`relay schema export` and `check` as a project uses them, and the page that lists their codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from relay.domain.evolution import ChangeCode

ROOT = Path(__file__).parents[2]
EVENTS = """
from pydantic import BaseModel
from relay import event

@event("order_placed", version={version}, aggregate_type="order", aggregate_id="order_id")
class OrderPlaced(BaseModel):
    order_id: str
    {fields}
"""
HANDLERS = """
from consumer.handlers import handles, upcasts
import shop.events

@handles(shop.events.OrderPlaced)
def placed(order: shop.events.OrderPlaced) -> None: ...
"""
UPCASTER = """
@upcasts("order_placed", from_version=1)
def without_note(payload): return {**payload, "note": ""}
"""
CONFIG = """
[contexts.sea]
database_url = "postgresql://localhost/sea"
[contexts.sea.stream]
name = "SEA_EVENTS"
subjects = ["sea.event.>"]
[contexts.sea.subscriptions.own]
stream = "SEA_EVENTS"
durable = "sea__own"
filter_subject = "sea.event.>"
handler = "python:shop.handlers"
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").touch()
    (tmp_path / "relay.toml").write_text(CONFIG)
    (tmp_path / "shop/handlers.py").write_text(HANDLERS)
    declare(tmp_path, 1, "total: int")
    return tmp_path


@pytest.fixture
def relay(project: Path) -> Run:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from relay.cli import main; main()", "schema", *arguments]
        return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)

    return run


def declare(project: Path, version: int, fields: str) -> None:
    (project / "shop/events.py").write_text(EVENTS.format(version=version, fields=fields))


def test_a_change_that_breaks_what_is_committed_fails_and_another_is_listed(project: Path, relay: Run) -> None:
    assert "relay schema export" in relay("check").stderr
    assert relay("export").stdout.splitlines() == ["order_placed.v1.json", "1 files changed in event-schemas."]
    assert (relay("check").returncode, relay("check").stdout) == (0, "nothing has changed\n")

    declare(project, 1, 'total: int\n    note: str = ""')
    found = relay("check")
    assert (found.returncode, found.stdout.splitlines()) == (
        0,
        ["note     FIELD_ADDED  order_placed.v1 note: is new", "1 notes"],
    )

    declare(project, 1, "total: int | None")
    assert (relay("check").returncode, relay("check", "--strict").returncode) == (0, 1)

    declare(project, 1, "total: str")
    found = relay("check", "--json")
    (change,) = json.loads(found.stdout)["changes"]
    assert (found.returncode, change["code"], change["weight"], change["path"]) == (
        1,
        "TYPE_CHANGED",
        "error",
        "total",
    )
    refused = relay("export")
    assert (refused.returncode, refused.stderr.split(":")[0]) == (1, "error BREAKING_CHANGE")
    assert relay("export", "--accept", "order_placed.v1").returncode == 0
    assert relay("check").returncode == 0


def test_a_version_may_go_if_an_upcaster_reads_it(project: Path, relay: Run) -> None:
    relay("export")
    declare(project, 2, "total: int\n    note: str")
    found = relay("check")
    assert (found.returncode, found.stdout.split()[1]) == (1, "VERSION_REMOVED")
    (project / "shop/handlers.py").write_text(HANDLERS + UPCASTER)
    found = relay("check", "--strict")
    assert found.returncode == 0
    assert re.findall("VERSION_[A-Z]+", found.stdout) == ["VERSION_UPCAST", "VERSION_ADDED"]
    assert relay("export").returncode == 0
    assert sorted(path.name for path in (project / "event-schemas").iterdir()) == [
        "order_placed.v1.json",
        "order_placed.v2.json",
    ]


def test_modules_that_are_named_need_no_configuration(project: Path, relay: Run) -> None:
    (project / "relay.toml").unlink()
    assert relay("export", "shop.events", "--catalogue", "there").returncode == 0
    assert [path.name for path in (project / "there").iterdir()] == ["order_placed.v1.json"]
    assert "shop.nothing" in relay("export", "shop.nothing").stderr
    assert "INVALID_CONFIG" in relay("export").stderr


def test_the_page_has_every_code() -> None:
    page = (ROOT / "docs/how-to/evolve-events.md").read_text()
    assert set(re.findall(r"`([A-Z]+_[A-Z]+)`", page)) == set(ChangeCode)
