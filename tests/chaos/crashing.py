"""A fleet of two workers that can be killed, paused and cut off at a named point, and the play of one crash."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from pydantic import BaseModel
from sqlalchemy import create_engine, text
from starlette.requests import Request
from starlette.responses import Response

from chaos.history import Source
from relay.failpoints import FailpointAction, arm, reached
from relay.handler import HandlerEndpoint, Poison, Received
from tests.acceptance import python_effects
from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.chaos.story import Story, broken, stored
from tests.waiting import wait_for

PYTHON_HANDLER = "python:tests.acceptance.python_effects"
#: A transaction that is paused in a handler ends after this time, and its message's claim after eight seconds.
HANDLER_TIMEOUT = "5s"
#: What became of everything, and when: a second end would change it.
END_STATE = {
    "vibespro": ("SELECT id, published_at, published_seq, dead_at FROM outbox_events ORDER BY seq",),
    "sea": (
        "SELECT message_id, processed_at, dead_lettered_at, attempts FROM inbox_messages ORDER BY message_id",
        "SELECT message_id, attempt FROM effects ORDER BY message_id, attempt",
        "SELECT message_id, occurrence FROM dead_letters ORDER BY message_id, occurrence",
    ),
}


class Vibe(BaseModel):
    n: int
    poison: bool = False


class EffectService(HandlerService):
    """A handler service that keeps its effects in a database of its own by `relay.handler`."""

    def use(self, url: str) -> None:
        """Keep the effects there from now on."""
        self._engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        self._endpoint = HandlerEndpoint("effects", self._engine, {"vibe_created.v1": Vibe}).route(_write)

    async def _handle(self, request: Request) -> Response:
        return await self._endpoint(request)


def _write(event: Received[Vibe, Any]) -> None:
    row = {"message_id": event.message_id}
    event.session.execute(text("INSERT INTO effects (message_id, attempt) VALUES (:message_id, 0)"), row)
    if event.payload.poison:
        raise Poison("not this one")


@dataclass
class CrashFleet(Fleet):
    """``with`` starts the servers; `begin` two workers and a scheduler. ``failpoints`` must exist.

    ``table``: the statement that creates the table of the effects.
    """

    failpoints: Path = Path()
    story: Story = field(default_factory=lambda: Story(Source.HTTP))
    table: str = python_effects.TABLE
    _hired: int = 0

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "RELAY_FAILPOINTS": str(self.failpoints)}

    def begin(self) -> None:
        """Start the workers, and then the scheduler: without it they have nothing to do."""
        self.hire()
        self.scheduler()

    def hire(self) -> None:
        """Start the workers, and wait until a kill may come."""
        self.query("sea", self.table)
        self.workers = [self._hire(), self._hire()]
        self._watched()

    def replace(self, worker: subprocess.Popen[bytes]) -> None:
        """Start a worker in the place of one that has ended, and wait until a kill may come."""
        self.workers[self.workers.index(worker)] = self._hire()
        self._watched()

    def _hire(self) -> subprocess.Popen[bytes]:
        self._hired += 1
        return self.worker()

    def _watched(self) -> None:
        """Wait until each of Dramatiq's masters watches its process.

        A process says to its master that it is ready, and holds a lock meanwhile. If it is killed there, the
        master waits for the lock for ever, and no signal but SIGKILL ends it (Dramatiq 2.2).
        """
        wait_for("the masters watch", lambda: self.log("worker").count("is booting up") == self._hired)

    def worker_of(self, pid: int) -> subprocess.Popen[bytes]:
        """The worker whose master has started a process."""
        parents = {parent.pid for parent in psutil.Process(pid).parents()}
        return next(worker for worker in self.workers if worker.pid in parents)

    def end_state(self) -> list[Any]:
        """What a process that comes too late must leave as it is."""
        rows = [self.query(context, sql) for context, reads in END_STATE.items() for sql in reads]
        return [*rows, list(stored(self))]

    def check(self) -> None:
        """Wait until every event since the beginning has come to its end, and have it judged."""
        found = broken(self, self.story)
        assert not found, found
        # The judge allows for a copy that comes after the duplicate window. Nothing here takes that long.
        assert [id for id, count in Counter(found.id for found in stored(self)).items() if count > 1] == []


def play(fleet: CrashFleet, point: str, action: FailpointAction, version: int = 1) -> None:
    """Commit events of a version, have ``action`` happen at ``point``, and check what comes of the events."""
    fleet.story.version = version
    arm(fleet.failpoints, point, action)
    fleet.story.tell(fleet.urls["vibespro"])
    pid = wait_for(f"{point} is passed", lambda: reached(fleet.failpoints, point))
    match action:
        case FailpointAction.KILL:
            fleet.replace(killed(fleet))
        case FailpointAction.PAUSE:
            wait_for("it is paused", lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
            fleet.check()
            before = fleet.end_state()
            resume(fleet, pid)
            assert fleet.end_state() == before
        case FailpointAction.LOST_REPLY:
            pass
    # The fleet works as before: no duty has been left with whoever was hit.
    fleet.story.tell(fleet.urls["vibespro"])
    fleet.check()
    # Nothing but what was asked for has ended a worker.
    assert [worker.poll() for worker in fleet.workers] == [None, None]


def killed(fleet: CrashFleet) -> subprocess.Popen[bytes]:
    """The worker that ends: Dramatiq's master gives up when its process is killed."""
    ended = wait_for("a worker ends", lambda: [worker for worker in fleet.workers if worker.poll() is not None])
    assert [worker.returncode for worker in ended] == [1]
    return ended[0]


def resume(fleet: CrashFleet, pid: int) -> None:
    """Let a paused process do the rest of what it was at, to the end: it stops only when its jobs are done."""
    worker = fleet.worker_of(pid)
    psutil.Process(pid).send_signal(signal.SIGCONT)
    assert fleet.stop(worker, 60) == 0
    fleet.replace(worker)
