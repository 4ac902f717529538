"""Faults within a worker that runs on: its clock, its event loop. See `chaos.levers`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from chaos.levers import CLOCK, STALL
from chaos.stage import Stage

#: By how much a clock is wrong, ahead or behind, in seconds.
_SKEW: Final = (30.0, 900.0)
#: How long a loop stands still: shorter than a lease, and longer.
_STALL: Final = (2.0, 12.0)
_OBEYED_SECONDS: Final = 2.0


@contextmanager
def clock_wrong(stage: Stage, target: str) -> Iterator[None]:
    """The worker's wall clock is minutes ahead of the database's, or behind; then right again."""
    lever = stage.rig.levers(target) / CLOCK
    seconds = stage.random.choice([-1, 1]) * stage.random.uniform(*_SKEW)
    stage.note(f"{seconds:+.0f} s")
    _write(lever, repr(seconds))
    try:
        yield
    finally:
        _write(lever, "0.0")


@contextmanager
def stalled(stage: Stage, target: str) -> Iterator[None]:
    """Something blocks the worker's event loop; its threads go on."""
    lever = stage.rig.levers(target) / STALL
    seconds = stage.random.uniform(*_STALL)
    _write(lever, repr(seconds))
    stage.over.wait(_OBEYED_SECONDS)
    if lever.exists():
        lever.unlink(missing_ok=True)
        stage.note("the worker did not look")
    else:
        stage.note(f"{seconds:.1f} s")
        # Wait for the end of the stall, even if the run ends first: until then the fault is not over.
        time.sleep(max(0.0, seconds - _OBEYED_SECONDS))
    yield


def _write(lever: Path, text: str) -> None:
    draft = lever.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(lever)
