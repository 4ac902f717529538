"""`relay dev`: starts, delivers, stops, and survives its own death."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

import httpx2
import psutil
import psycopg
import pytest

from relay.outbox import Event, Outbox
from tests.acceptance.started import ROOT, Started, shell_variables
from tests.integration.devstack_support import living


@pytest.fixture
def directory(server_directory: Path) -> Path:
    server_directory.mkdir(parents=True)
    shutil.copy(ROOT / "relay.toml", server_directory)
    return server_directory


def dev(directory: Path, *arguments: str) -> Started:
    started = Started(directory, "dev", "--samples", *arguments)
    started.until_shown("ready after")
    return started


def url(directory: Path, context: str) -> str:
    return shell_variables(directory / ".relay" / "environment")[
        f"RELAY_CONTEXTS__{context.upper()}__DATABASE_URL"
    ]


def write_event(directory: Path) -> str:
    with psycopg.connect(url(directory, "vibespro")) as connection:
        event = Event(
            event_type="vibe_created", aggregate_type="vibe", aggregate_id="1", payload={"verdict": "ok"}
        )
        return str(Outbox("vibespro").add(connection, event))


def effects(directory: Path, message_id: str) -> int:
    with psycopg.connect(url(directory, "sea")) as connection:
        query = "SELECT count(*) FROM sample_effects WHERE message_id = %s"
        [(count,)] = connection.execute(query, [message_id]).fetchall()
        return int(count)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_an_event_reaches_the_sample_handler_and_a_signal_ends_everything(
    directory: Path, number: signal.Signals
) -> None:
    with dev(directory) as started:
        family = started.family()
        assert len(family) > 6
        started.until_shown(
            "ready: contexts vibespro, sea; subscriptions sea.from_vibespro; tasks none; handlers http://"
        )
        started.until_shown("relay doctor: nothing to change")
        [console] = {*re.findall(r"console +(http://\S+/)", started.text)}
        assert "vibespro" in httpx2.get(console).text
        message_id = write_event(directory)
        started.until(lambda: effects(directory, message_id), 30)
        started.until_shown(f"vibe_created {message_id}: 200", 10)  # the handler's log, with its prefix
        assert f"handler   | INFO sample vibe_created {message_id}: 200" in started.text
        assert started.stop(number) == 0, started.text
        assert living(family) == []


def test_it_starts_again_on_its_data_after_kill_9(directory: Path) -> None:
    with dev(directory) as first:
        message_id = write_event(directory)
        first.until(lambda: effects(directory, message_id), 30)
        family = first.family()
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
        with dev(directory) as second:
            assert living(family) == []
            assert effects(directory, message_id) == 1
            another = write_event(directory)
            second.until(lambda: effects(directory, another), 30)
            assert second.stop() == 0, second.text


def test_frozen_children_of_a_killed_fleet_are_ended_by_the_next(directory: Path) -> None:
    with dev(directory) as first:
        family = first.family()
        for process in family[1:]:
            process.suspend()  # they cannot follow the signal of their parent's death
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
        assert living(family)
        with dev(directory) as second:
            assert living(family) == []
            assert second.stop() == 0, second.text


def test_a_process_that_ends_by_itself_is_named_and_ends_all(directory: Path) -> None:
    with dev(directory) as started:
        family = started.family()
        [scheduler] = [process for process in family if "scheduler" in process.cmdline()]
        scheduler.kill()
        assert started.process.wait(60) == 1
        assert "scheduler ended with status -9" in started.text
        assert living(family) == []


def of_postgres(process: psutil.Process) -> bool:
    """Whether PostgreSQL has started a process: its sessions come and go."""
    try:
        above = process.parent()
        return above is not None and above.name() == "postgres"
    except psutil.Error:  # it has gone
        return True


def test_a_second_fleet_in_the_directory_is_refused_and_harms_nobody(directory: Path) -> None:
    with dev(directory) as first:
        family = [process for process in first.family() if not of_postgres(process)]
        (other := directory / "other").mkdir()
        shutil.copy(ROOT / "relay.toml", other)
        with Started(other, "dev", "--directory", str(directory / ".relay")) as second:
            assert second.process.wait(60) == 1
            assert "error STACK_BUSY" in second.text
        assert living(family) == [process.pid for process in family]
        assert first.stop() == 0, first.text


def test_a_second_signal_kills(directory: Path) -> None:
    with dev(directory) as started:
        family = started.family()
        [worker] = [process for process in started.family()[0].children() if "relay.actors" in process.cmdline()]
        worker.suspend()  # it will not follow the first
        started.process.send_signal(signal.SIGINT)
        started.until_shown("stopping")
        started.process.send_signal(signal.SIGINT)
        assert started.process.wait(15) == 0, started.text
        assert living(family) == []


def test_a_wrong_configuration_is_told_before_anything_starts(directory: Path) -> None:
    (directory / "relay.toml").write_text("[contexts.sea]\nsubjekt = 'x'\n")
    with Started(directory, "dev") as started:
        assert started.process.wait(30) == 1
        assert "error INVALID_CONFIG" in started.text
        assert not (directory / ".relay").exists()
