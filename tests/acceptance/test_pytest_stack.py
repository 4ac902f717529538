"""The fixtures for real servers, as page and example use them: a worker dies where it hurts, nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repository.test_pytest_plugin import example, run, written


def test_the_page_kills_a_worker_and_all_is_well(tmp_path: Path) -> None:
    done = run(written(tmp_path), "test_stack.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.soak  # the page above kills a worker of such a stack too
def test_the_example_service_loses_nothing_when_a_worker_dies() -> None:
    done = example("test_stack.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
