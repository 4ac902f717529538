"""Failpoints: off unless asked for, an action once however many processes pass, and a setting that is checked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay import failpoints
from relay.domain.errors import Outage
from relay.failpoints import POINTS, FailpointAction, arm, enable, reach, reached
from tests.unit.settings_support import Load, loader, refusal

POINT = "after_claim"
ROOT = Path(__file__).parents[2]
#: Passes a point once its standard input ends, so that several processes pass it at the same moment.
PASS = (
    "import sys; from pathlib import Path; from relay.failpoints import enable, reach\n"
    "enable(Path(sys.argv[1])); print('ready', flush=True); sys.stdin.read(); reach(sys.argv[2]); print('passed')"
)


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    enable(None)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader(tmp_path, monkeypatch)


def passing(directory: Path, point: str = POINT) -> subprocess.Popen[str]:
    """A process that is about to pass a point."""
    process = subprocess.Popen(
        [sys.executable, "-c", PASS, directory, point],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_point_that_nobody_has_armed_does_nothing(tmp_path: Path) -> None:
    enable(tmp_path)
    reach(POINT)
    assert list(tmp_path.iterdir()) == []
    assert reached(tmp_path, POINT) is None


def test_switched_off_even_an_armed_point_does_nothing(tmp_path: Path) -> None:
    arm(tmp_path, POINT, FailpointAction.KILL)
    reach(POINT)
    assert reached(tmp_path, POINT) is None


@pytest.mark.parametrize("point", POINTS)
def test_a_lost_reply_is_an_outage_of_the_server_that_would_have_replied(tmp_path: Path, point: str) -> None:
    enable(tmp_path)
    arm(tmp_path, point, FailpointAction.LOST_REPLY)
    with pytest.raises(POINTS[point], match=f"{point}: the reply was lost") as caught:
        reach(point)
    assert isinstance(caught.value, Outage)
    assert reached(tmp_path, point) == os.getpid()


def test_an_action_happens_once_and_only_at_its_point(tmp_path: Path) -> None:
    enable(tmp_path)
    arm(tmp_path, POINT, FailpointAction.LOST_REPLY)
    for other in POINTS.keys() - {POINT}:
        reach(other)
    with pytest.raises(Outage):
        reach(POINT)
    reach(POINT)


def test_a_point_armed_again_forgets_who_passed_before(tmp_path: Path) -> None:
    enable(tmp_path)
    for _ in range(2):
        arm(tmp_path, POINT, FailpointAction.LOST_REPLY)
        assert reached(tmp_path, POINT) is None
        with pytest.raises(Outage):
            reach(POINT)


def test_of_many_processes_one_is_killed(tmp_path: Path) -> None:
    passers = [passing(tmp_path) for _ in range(4)]
    arm(tmp_path, POINT, FailpointAction.KILL)
    for process in passers:
        assert process.stdin is not None
        process.stdin.close()
    codes = {process.pid: process.wait(30) for process in passers}
    assert sorted(codes.values()) == [-signal.SIGKILL, 0, 0, 0]
    killed = reached(tmp_path, POINT)
    assert killed is not None
    assert codes[killed] == -signal.SIGKILL


def test_a_paused_process_goes_on_where_it_stopped(tmp_path: Path) -> None:
    process = passing(tmp_path)
    arm(tmp_path, POINT, FailpointAction.PAUSE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert reached(tmp_path, POINT) == process.pid
    process.send_signal(signal.SIGCONT)
    assert process.stdout.read() == "passed\n"
    assert process.wait(30) == 0


def test_an_unknown_point_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no failpoint is called 'after_clam'; known: after_claim, "):
        arm(tmp_path, "after_clam", FailpointAction.KILL)
    assert list(tmp_path.iterdir()) == []


# --- the setting ---


def test_failpoints_are_off_by_default(load: Load) -> None:
    assert load().failpoints is None
    assert failpoints._directory is None


def test_the_directory_comes_from_the_environment(load: Load, tmp_path: Path) -> None:
    assert load(RELAY_FAILPOINTS=str(tmp_path)).failpoints == tmp_path


def test_a_directory_that_does_not_exist_is_refused(load: Load, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert "RELAY_FAILPOINTS" in refusal(load, RELAY_FAILPOINTS=missing)
