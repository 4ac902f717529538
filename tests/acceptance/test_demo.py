"""`relay demo`: exits 0 when the accounts balance, and 1 when somebody meddles with them."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

import nats
import psutil
import pytest

from relay.settings.urls import hide_url
from tests.acceptance.started import Started, shell_variables
from tests.integration.devstack_support import living

ID = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"


@pytest.fixture
def directory(server_directory: Path) -> Path:
    server_directory.mkdir(parents=True)
    return server_directory


def nats_url(directory: Path) -> str:
    return shell_variables(directory / ".relay/demo/environment")["NATS_URL"]


def member(started: Started, word: str) -> psutil.Process:
    """The process of the demo with ``word`` in its command line."""
    [found] = [process for process in started.family()[0].children() if word in " ".join(process.cmdline())]
    return found


def unhandled(text: str) -> list[int]:
    """How many events were committed and not handled, line by line."""
    figures = re.findall(r"committed (\d+) .* handled (\d+) .* dead-lettered (\d+)", text)
    return [int(committed) - int(handled) - int(dead) for committed, handled, dead in figures]


def delete_first_message(url: str, stream: str) -> str:
    """Steal a message from a stream; returns its id."""

    async def steal() -> str:
        client = await nats.connect(url)
        try:
            js = client.jetstream()
            message = await js.get_msg(stream, 1)
            await js.delete_msg(stream, 1)
            return str((message.headers or {})["Nats-Msg-Id"])
        finally:
            await client.close()

    return asyncio.run(steal())


def test_the_accounts_balance(directory: Path) -> None:
    with Started(directory, "demo", "--seconds", "120") as started:  # other fleets start beside it
        started.until_shown("committed ")
        family = started.family()
        assert started.process.wait(200) == 0, started.text
        text = started.text
        assert living(family) == []
    assert "The accounts balance.\n  500 committed = 490 handled + 10 dead-lettered\n" in text
    assert re.search(r"[1-9]\d* rolled back, none of them delivered\n", text)
    assert "\x1b" not in text
    figures = [line for line in text.splitlines() if re.match(r" *\d+\.\d s  committed \d+  published \d+", line)]
    assert len(figures) >= 5
    # A slow machine calls some more than once: "422 (9); 422, 422 (1)". The last four figures of a row stay.
    for asked, answers, figures in (
        ("200", r"200 \(\d+\)", "467 467 0 467"),
        ("409", r"409 \(\d+\)", "10 10 0 0"),
        ("422", r"422 \(\d+\)", "10 0 10 0"),
        ("503, 503, 200", r"503, 503, 200 \(\d+\)", "12 12 0 12"),
        ("no answer in time, then(?: 200)?", "no answer, 200", "1 1 0 1"),  # a wide table breaks the line
    ):
        row = re.search(rf"^{asked} +(\S.*?)((?: +\d+){{4}})$", text, re.MULTILINE)
        assert row is not None, (asked, text)
        assert re.search(answers, row[1]), row[0]
        assert row[2].split() == figures.split(), row[0]
    assert re.search(r"published +500( +\d+){4}", text)


def test_a_message_stolen_from_the_stream_is_named(directory: Path) -> None:
    with Started(directory, "demo") as started:
        started.until(lambda: re.search(r"published [1-9]", started.text))
        stolen = delete_first_message(nats_url(directory), "VIBESPRO_EVENTS")
        assert started.process.wait(120) == 1
        assert "The accounts do not balance." in started.text
        assert f"1 published, but not in the stream: {stolen}" in started.text


def test_what_a_frozen_worker_leaves_undone_is_named(directory: Path) -> None:
    with Started(directory, "demo", "--events", "5000", "--seconds", "12") as started:
        started.until_shown("Ready after")
        worker = member(started, "relay.actors")
        for process in (worker, *worker.children(recursive=True)):
            process.suspend()
        assert started.process.wait(80) == 1
        assert "The time is over" in started.text
        assert re.search(rf"\d+ committed, but not published: {ID}", started.text)
        assert re.search(rf"\d+ committed, and neither handled nor dead-lettered: {ID}", started.text)


def test_a_killed_handler_ends_the_demo_and_the_unhandled_are_named(directory: Path) -> None:
    with Started(directory, "demo", "--events", "5000") as started:
        started.until_shown("Ready after")
        family = started.family()
        handler = member(started, "relay.devstack.sample")
        handler.suspend()
        before = len(unhandled(started.text))
        started.until(lambda: [count for count in unhandled(started.text)[before:] if count > 50])
        handler.kill()
        assert started.process.wait(120) == 1
        assert "status -9" in started.text
        assert unhandled(started.text)
        assert living(family) == []


def test_it_begins_anew_each_time_and_stays_when_asked(directory: Path) -> None:
    for _ in range(2):
        with Started(directory, "demo", "--stay", "--events", "50") as started:
            started.until_shown("Ctrl-C stops it")
            assert "50 committed = 49 handled + 1 dead-lettered" in started.text
            assert hide_url(nats_url(directory)) in started.text
            assert started.stop(signal.SIGINT) == 0, started.text


def test_ctrl_c_in_the_middle_ends_everything(directory: Path) -> None:
    with Started(directory, "demo") as started:
        started.until(lambda: re.search(r"handled [1-9]", started.text))
        family = started.family()
        assert started.stop(signal.SIGINT) == 130, started.text
        assert living(family) == []
