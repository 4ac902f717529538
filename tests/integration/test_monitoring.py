"""How worker processes count together, and what happens where they cannot."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from relay.devstack import NatsServer, ValkeyServer
from relay.devstack.ports import free_port
from relay.domain.errors import ConfigurationError, MissingExtraError
from relay.monitoring import examine, scheduler_metrics, tasks_metrics, worker_metrics
from relay.settings import MetricsSettings, Settings

ROOT = Path(__file__).parents[2]
#: A worker process that counts a message, in a module that loads prometheus-client before ours has chosen files.
WORKER = """
import os, sys
from pathlib import Path
from prometheus_client import Counter
from relay.domain.facts import AlertFailed
from relay.monitoring import worker_metrics
from relay.settings import load_settings

metrics = worker_metrics(load_settings(Path(sys.argv[1]), {}))
metrics(AlertFailed(context="sea", error="x", waiting=1))
Counter("mine", "A counter of the application.").inc(7)
os.kill(os.getpid(), 9)
"""


def ask(context: str) -> Future[None]:
    raise AssertionError(f"nobody asks for {context}")


def run(directory: Path) -> int:
    config = directory / "relay.toml"
    config.write_text(
        f'[metrics]\nworker = 9465\ndirectory = "{directory}/metrics"\n'
        '[contexts.sea]\ndatabase_url = "postgresql://localhost/sea"\n'
    )
    command = [sys.executable, "-c", WORKER, str(config)]
    with subprocess.Popen(command, env={"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True) as worker:
        _, errors = worker.communicate(timeout=200)
    assert worker.returncode == -9, errors
    return worker.pid


def test_what_a_worker_has_counted_outlives_it(tmp_path: Path) -> None:
    for _ in range(2):
        number = run(tmp_path)
        directory = tmp_path / "metrics" / f"workers-{number}"
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(directory))
        assert registry.get_sample_value("jetrelay_alerts_failed_total", {"context": "sea"}) == 1
        assert registry.get_sample_value("mine_total") == 7


def test_the_files_have_their_room_before_a_disk_is_full(tmp_path: Path) -> None:
    """A write into a file without blocks, on a full disk, would be a SIGBUS in the middle of a handler."""
    number = run(tmp_path)
    files = sorted((tmp_path / "metrics" / f"workers-{number}").glob("*.db"))
    assert [file.name.partition("_")[0] for file in files] == ["counter", "histogram"]
    for file in files:
        assert file.stat().st_blocks * 512 >= file.stat().st_size == 1 << 20


def test_nobody_else_reads_what_a_worker_counts(tmp_path: Path) -> None:
    """Names of types and queues are the business of one account. Python makes missing parents for everybody."""
    number = run(tmp_path)
    top = tmp_path / "metrics"
    found = {it.name: it.stat().st_mode & 0o777 for it in (top, *top.glob("*"), *top.glob("*/*.db"))}
    assert found.pop("metrics") == found.pop(f"workers-{number}") == 0o700
    assert {*found.values()} == {0o600}


def test_the_commands_of_a_fleet_count_in_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one of them can have the address, and it answers for all."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "set by the test, so that it is unset after it")
    metrics = MetricsSettings(worker="9465", directory=tmp_path / "file")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="file/workers-abc-4711"):
        worker_metrics(Settings(metrics=metrics, fleet="abc-4711"))


def test_each_server_is_asked_and_one_that_is_away_is_named(
    database_url: str, nats_server: NatsServer, valkey: ValkeyServer
) -> None:
    def found(**servers: str) -> dict[str, str | None]:
        urls = {"nats_url": nats_server.url, "redis_url": valkey.url, "database_url": database_url} | servers
        database = urls.pop("database_url")
        settings = Settings.model_validate({**urls, "contexts": {"sea": {"database_url": database}}})
        examined = examine(settings)
        assert all(it.milliseconds > 0 and it.healthy == (it.error is None) for it in examined)
        return {it.server: it.error for it in examined}

    nobody = f"127.0.0.1:{free_port()}"
    assert found() == {"nats": None, "redis": None, "postgresql sea": None}
    away = found(
        nats_url=f"nats://{nobody}", redis_url=f"redis://{nobody}", database_url=f"postgresql://{nobody}/x"
    )
    assert away["nats"] == "BROKER_UNREACHABLE"
    assert away["postgresql sea"] == "DATABASE_UNREACHABLE"
    assert away["redis"] is not None


def test_without_an_address_there_is_no_listener() -> None:
    assert worker_metrics(Settings()) is None
    assert [*scheduler_metrics(Settings(), {}, ask), *tasks_metrics(Settings(), [])] == []


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "set by the test, so that it is unset after it")
    (tmp_path / "file").touch()
    metrics = MetricsSettings(worker="9465", directory=tmp_path / "file")
    with pytest.raises(ConfigurationError, match=r"file/workers-\d+ .*Not a directory"):
        worker_metrics(Settings(metrics=metrics))


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("exposition", "metrics", "backlogs", "lag"):
        monkeypatch.delitem(sys.modules, f"relay.telemetry.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    settings = Settings(metrics=MetricsSettings(scheduler="9464", tasks="9466"))
    with pytest.raises(MissingExtraError) as caught:
        scheduler_metrics(settings, {}, ask)
    assert "jetrelay[metrics]" in str(caught.value.hint)
    with pytest.raises(MissingExtraError):
        tasks_metrics(settings, [])
