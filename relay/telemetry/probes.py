"""GET /healthz and GET /readyz beside the metrics: whether a process works, and whether its servers answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from relay.telemetry.liveness import Stuck

#: Seconds for which answers of the servers are used again, so that many probes make few connections.
_GOOD_S: Final = 2.0


class ServerAnswer(NamedTuple):
    """A server, whether it answers, how long it took, and the code of the error."""

    server: str
    healthy: bool
    milliseconds: float
    error: str | None


class Probes:
    """Answers the probes of a process. ``examine`` asks the servers; it may take seconds. Runs in any thread."""

    def __init__(
        self,
        stuck: Stuck,
        examine: Callable[[], Sequence[ServerAnswer]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stuck, self._examine, self._clock = stuck, examine, clock
        self._asking = threading.Lock()
        self._last: tuple[float, Sequence[ServerAnswer]] | None = None

    def healthz(self, _query: str) -> tuple[HTTPStatus, dict[str, Any]]:
        """Whether the process still works, whatever its servers do."""
        if stuck := list(self._stuck()):
            return HTTPStatus.SERVICE_UNAVAILABLE, {"status": "stuck", "stuck": stuck}
        return HTTPStatus.OK, {"status": "ok"}

    def readyz(self, _query: str) -> tuple[HTTPStatus, dict[str, Any]]:
        """Whether every server answers, each with its time and the code of its error."""
        with self._asking:
            if self._last is None or self._clock() - self._last[0] > _GOOD_S:
                found = self._examine()
                self._last = self._clock(), found
            found = self._last[1]
        ready = all(it.healthy for it in found)
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return status, {"ready": ready, "servers": [it._asdict() for it in found]}
