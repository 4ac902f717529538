"""dramatiq-dashboard, clicked through in a browser: what it shows of our queues, and what it does to them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from relay import jobs
from relay.adapters.dramatiq.broker import RelayBroker, create_broker
from relay.devstack import dashboard, http_checks, processes
from relay.devstack.ports import free_port
from relay.domain.errors import MissingExtraError
from tests.integration.deployed import LockedValkey
from tests.integration.test_ops_queues import handling, kill
from tests.integration.test_valkey_acl import refused
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
CHROMIUM = Path("/usr/bin/chromium")
HANDLE = jobs.HANDLE_QUEUE


@dataclass
class Served:
    url: str
    broker: RelayBroker

    def count(self, key: str) -> int:
        return int(self.broker.client.hlen(f"{self.broker.namespace}:{HANDLE}{key}.msgs"))


@pytest.fixture(scope="module")
def locked(server_root: Path) -> Iterator[LockedValkey]:
    """With the user of docker-compose.yml, who may do what the dashboard does and nothing else."""
    with LockedValkey(server_root / "valkey-of-dashboard") as server:
        yield server


@pytest.fixture
def served(locked: LockedValkey, tmp_path: Path) -> Iterator[Served]:
    pytest.importorskip("dramatiq_dashboard", reason="`make setup` installs it, without its requirements")
    port = free_port()
    environment = {
        **os.environ,
        "RELAY_CONFIG": str(ROOT / "deploy" / "relay.toml"),
        "DATABASE_URL": "postgresql://127.0.0.1:1/{context}",
        "REDIS_URL": locked.url.replace("//relay:", "//dashboard:"),
    }
    command = [sys.executable, "-m", "relay.devstack.dashboard", "--port", str(port)]
    process = processes.spawn(command, log=tmp_path / "log", directory=tmp_path, environment=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for("it answers", lambda: http_checks.get(f"{url}/") or process.poll() is not None)
        assert process.poll() is None, (tmp_path / "log").read_text()
        yield Served(url, create_broker(locked.url, namespace="relay", middleware=[]))
        assert refused(locked) == []
    finally:
        process.terminate()
        assert process.wait(20) == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    sync_api = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield found
        found.close()


def test_it_is_clicked_through(served: Served, browser: object) -> None:
    dead = kill(served.broker, handling(), handling())
    served.broker.enqueue(handling(), delay=3_600_000)
    served.broker.enqueue_many([handling()])
    page = browser.new_page()  # type: ignore[attr-defined]
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on("response", lambda answer: answer.status >= 400 and failures.append(f"{answer.status} {answer.url}"))
    page.goto(served.url)
    for queue in (*jobs.QUEUES, jobs.task_queue()):
        assert page.get_by_role("link", name=queue, exact=True).count() == 1, queue
    page.get_by_role("link", name=HANDLE, exact=True).click()
    assert "handle_message" in page.inner_text("table")
    page.get_by_role("link", name=re.compile("Delayed")).click()
    assert page.locator("tbody tr").count() == 1
    page.get_by_role("link", name=re.compile("Failed")).click()
    assert page.locator("tbody tr").count() == len(dead)
    # The page of a job: our ids hold a slash.
    page.locator("tbody a").first.click()
    assert "sea/from_upstream" in page.inner_text("table")
    page.go_back()
    page.get_by_role("button", name="Requeue").first.click()
    page.wait_for_load_state()
    assert (served.count(""), served.count(".XQ")) == (2, 1)
    page.goto(f"{served.url}/queues/{HANDLE}/failed")
    page.get_by_role("button", name="Delete").first.click()
    page.wait_for_load_state()
    assert (served.count(""), served.count(".XQ")) == (2, 0)
    assert "no jobs in this queue" in page.inner_text("table")
    assert failures == []
    page.close()
    consumer = served.broker.consume(HANDLE, prefetch=5, timeout=100)
    assert {next(consumer).args[0] for _ in range(2)} == {"sea"}, "a worker takes what was requeued"
    consumer.close()


def test_a_foreign_name_for_this_machine_is_refused(served: Served) -> None:
    with pytest.raises(OSError, match="403"):
        urlopen(Request(served.url, headers={"Host": "evil.example"}), timeout=60)


def test_without_the_package_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dramatiq_dashboard", None)
    with pytest.raises(MissingExtraError) as caught:
        dashboard.application()
    assert "pip install --no-deps dramatiq-dashboard" in (caught.value.hint or "")
