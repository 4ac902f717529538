"""Named points of the delivery paths where a test may kill or pause the process, or lose a reply.

See DESIGN §9, promise 7. Failpoints are off unless ``RELAY_FAILPOINTS`` names a directory. While they are off, a
point costs one comparison. To arm a point, a test writes a file with the point's name there; the file holds an
action. The first process that passes the point renames the file and acts. So an action happens only once, and
the file's new name tells the test.
"""

from __future__ import annotations

import os
import signal
from enum import Enum
from pathlib import Path
from typing import Final

from relay.domain.errors import BrokerUnreachable, DatabaseUnreachable, Outage, QueueUnreachable

#: Every point on the path of an event, and the outage that stands for a reply lost there.
EVENT_POINTS: Final[dict[str, type[Outage]]] = {
    "after_claim": DatabaseUnreachable,
    "after_publish_before_mark": BrokerUnreachable,
    "after_mark_before_commit": DatabaseUnreachable,
    "after_publish_commit": DatabaseUnreachable,
    "after_fetch_before_insert": BrokerUnreachable,
    "after_inbox_insert": DatabaseUnreachable,
    "after_enqueue": BrokerUnreachable,
    "after_message_claim": DatabaseUnreachable,
    "after_handler_before_mark": DatabaseUnreachable,
    "after_mark_before_handler_commit": DatabaseUnreachable,
    "after_commit_before_ack": BrokerUnreachable,
    "after_reject": DatabaseUnreachable,
    "before_dlq_commit": DatabaseUnreachable,
    "after_incident_commit": DatabaseUnreachable,
}
#: The same for background tasks. They share the points in a handler's transaction.
TASK_POINTS: Final[dict[str, type[Outage]]] = {
    "after_task_enqueue": QueueUnreachable,
    "after_task_claim": DatabaseUnreachable,
    "after_task_answer": DatabaseUnreachable,
}
#: The same for cron jobs.
CRON_POINTS: Final[dict[str, type[Outage]]] = {"after_cron_claim": DatabaseUnreachable}
POINTS: Final = EVENT_POINTS | TASK_POINTS | CRON_POINTS
_TAKEN: Final = ".reached"


class FailpointAction(Enum):
    """What happens at a point: SIGKILL, SIGSTOP until a SIGCONT, or an outage although the work succeeded."""

    KILL = "kill"
    PAUSE = "pause"
    LOST_REPLY = "lost-reply"


_directory: Path | None = None


def enable(directory: Path | None) -> None:
    """Look for armed points in ``directory``; None turns failpoints off."""
    global _directory  # noqa: PLW0603 - process-wide by nature
    _directory = directory


def enabled() -> bool:
    """Whether a test may have armed a point."""
    return _directory is not None


def arm(directory: Path, point: str, action: FailpointAction) -> None:
    """Make the next process that passes ``point`` do ``action``. Earlier passes are forgotten.

    Raises ValueError for an unknown point.
    """
    if point not in POINTS:
        raise ValueError(f"no failpoint is called {point!r}; known: {', '.join(POINTS)}")
    for taken in directory.glob(f"{point}{_TAKEN}.*"):
        taken.unlink()
    draft = directory / f"{point}.draft"
    draft.write_text(action.value)
    draft.replace(directory / point)


def reached(directory: Path, point: str) -> int | None:
    """The id of the process that passed an armed point; None if no process has passed it."""
    taken = next(directory.glob(f"{point}{_TAKEN}.*"), None)
    return None if taken is None else int(taken.suffix[1:])


def reach(point: str) -> None:
    """Pass a point. Raises the point's outage if a test has armed it with a lost reply."""
    if _directory is None:
        return
    mine = _directory / f"{point}{_TAKEN}.{os.getpid()}"
    try:
        (_directory / point).rename(mine)
    except FileNotFoundError:
        return
    match FailpointAction(mine.read_text()):
        case FailpointAction.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case FailpointAction.PAUSE:
            os.kill(os.getpid(), signal.SIGSTOP)
        case FailpointAction.LOST_REPLY:
            raise POINTS[point](f"failpoint {point}: the reply was lost")
