"""Python handlers that disturb others: see `rude_handlers`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from chaos.history import Ended
from chaos.rude_handlers import LEAVING, RAISING
from chaos.stage import Stage

#: So many messages come whose handlers fail some times.
_FLAKY: Final = 40


@contextmanager
def leftovers(stage: Stage, _target: str) -> Iterator[None]:
    """Each call leaves a setting, a lock, a table or a mode behind in the session that it was lent."""
    with _asked(stage.rig.history / LEAVING):
        yield


@contextmanager
def base_exceptions(stage: Stage, _target: str) -> Iterator[None]:
    """Calls that fail raise KeyboardInterrupt, SystemExit and others of the kind. No process may end by that."""
    workers = [it for it in stage.rig.of_role("worker") if it.wanted]
    before = {it.name: it.ended_alone for it in workers}
    with _asked(stage.rig.history / RAISING):
        stage.commit("flaky", _FLAKY)
        yield
    ended = [it.name for it in workers if it.ended_alone > before[it.name]]
    if ended:
        stage.history.write(Ended(stage.number, ended))
        stage.note(f"ended: {', '.join(ended)}")


@contextmanager
def _asked(flag: Path) -> Iterator[None]:
    flag.touch()
    try:
        yield
    finally:
        flag.unlink()
