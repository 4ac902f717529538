"""The clock by which ages in Redis are measured."""

from __future__ import annotations

import time
from typing import Any, Final

#: How long the clock of this process runs on after Redis' own before that is asked again, in seconds.
_ASK: Final = 60.0


class RedisClock:
    """Redis' clock: an age is a difference of this one clock, whatever the clocks of two hosts show."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._ahead = 0.0
        self._asked = -_ASK

    def now(self) -> int:
        """Milliseconds, right to within a round trip. Raises RedisError, once a minute at most."""
        if time.monotonic() - self._asked >= _ASK:
            seconds, micros = self._client.time()
            self._asked = time.monotonic()
            self._ahead = seconds + micros / 1e6 - self._asked
        return int((time.monotonic() + self._ahead) * 1000)
