"""A rolling restart: workers are replaced one after another, and only by workers that work."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.domain.members import State
from tests.integration.crewing import CRASHES, GENTLE, READY, Host, a_host


@pytest.fixture
def host(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Host]:
    caplog.set_level(logging.INFO, "relay.fleet")
    with a_host(tmp_path) as host:
        yield host


def rolling(host: Host) -> bool:
    """Whether a rolling restart is under way."""
    return bool(host.crew._old or host.crew._new)


def test_workers_are_replaced_one_after_another_each_when_its_successor_works(host: Host, caplog: Any) -> None:
    old = host.hire(2)
    host.crew.restart()
    for number, leaver in enumerate(old, 1):
        host.tick()
        new = host.crew.active[-1]
        assert len(host.crew.active) == 3
        host.tick(1)
        assert leaver in host.crew.active
        host.said = {**(host.said or {}), new.pid: State.WAITING}  # NATS does not answer it
        host.tick(1)
        assert leaver in host.crew.active
        host.works(new)
        host.tick(1)
        assert leaver not in host.crew.active
        assert len(host.crew.active) == 2
        if number < len(old):
            host.tick(1)
            assert len(host.crew.active) == 2 or leaver not in host.crew.workers
        host.gone(leaver)
    assert not rolling(host)
    assert not set(old) & set(host.crew.workers)
    assert "rolling restart done" in caplog.text


@pytest.mark.parametrize("how", ["it crashes", "it never works", "nobody can tell"])
def test_a_successor_that_does_not_work_ends_the_restart_and_the_old_ones_go_on(
    host: Host, how: str, caplog: Any
) -> None:
    old = host.hire(2)
    host.program = CRASHES if how == "it crashes" else GENTLE
    host.crew.restart()
    host.tick()
    [new] = set(host.crew.active) - set(old)
    if how == "it crashes":
        host.gone(new)
        host.tick()
    else:
        host.said = None if how == "nobody can tell" else {**(host.said or {}), new.pid: State.WAITING}
        host.tick(READY - 1)
        assert rolling(host)
        host.tick(1)
        host.gone(new)
    assert not rolling(host)
    host.tick(100)
    assert host.crew.active == old
    assert "rolling restart stopped, 2 workers go on as before" in caplog.text


def test_a_second_restart_replaces_what_the_first_one_has_started(host: Host) -> None:
    [first] = host.hire(1)
    host.crew.restart()
    host.tick()
    second = host.crew.active[-1]
    host.crew.restart()
    host.works(second)
    host.tick()
    host.gone(first)
    host.tick()
    third = host.crew.active[-1]
    assert third not in (first, second)
    host.works(third)
    host.tick()
    host.gone(second)
    assert host.crew.active == [third]
    assert not rolling(host)


def test_a_new_one_never_takes_over_from_itself(host: Host) -> None:
    """The only old one has crashed meanwhile, and then a second restart is asked for."""
    [first] = host.hire(1)
    host.crew.restart()
    host.tick()
    second = host.crew.active[-1]
    first.process.kill()
    host.gone(first)
    host.tick(2)
    third = host.crew.active[-1]
    host.crew.restart()
    host.works(second)
    host.tick()
    assert second in host.crew.active
    host.gone(third)
    host.tick()
    fourth = host.crew.active[-1]
    host.works(fourth)
    host.tick()
    host.gone(second)
    assert host.crew.active == [fourth]


def test_one_that_crashes_meanwhile_is_replaced_once(host: Host) -> None:
    first, second = host.hire(2)
    host.crew.restart()
    host.tick()
    new = host.crew.active[-1]
    second.process.kill()
    host.gone(second)
    host.works(new)
    host.tick(2)
    host.gone(first)
    host.tick(2)
    assert len(host.crew.active) == 2
    assert first not in host.crew.workers
    assert not rolling(host)


def test_the_end_comes_before_a_restart(host: Host) -> None:
    host.hire(2)
    host.crew.restart()
    host.tick()
    host.crew.end(host.now)
    host.until("all have ended", lambda: not host.crew.workers)
    assert host.crew.crashes == 0


def test_a_smaller_size_ends_those_that_wait_for_their_restart(host: Host) -> None:
    old = host.hire(3)
    host.crew.restart()
    host.tick()
    new = host.crew.active[-1]
    host.crew.wanted = 1
    host.tick()
    assert new in host.crew.active
    assert len(set(host.crew.active) & set(old)) == 1
