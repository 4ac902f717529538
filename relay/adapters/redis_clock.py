"""The clock that measures ages in Redis."""

from __future__ import annotations

import time
from typing import Any, Final

#: How often Redis' clock is asked, in seconds. In between, this process's clock counts on.
_ASK_INTERVAL_S: Final = 60.0


class RedisClock:
    """Redis' clock. An age is a difference of this one clock, so the clocks of hosts need not agree."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._ahead = 0.0
        self._asked = -_ASK_INTERVAL_S

    def now(self) -> int:
        """The time in milliseconds, exact to a round trip. Raises RedisError if Redis does not answer."""
        if time.monotonic() - self._asked >= _ASK_INTERVAL_S:
            seconds, micros = self._client.time()
            self._asked = time.monotonic()
            self._ahead = seconds + micros / 1e6 - self._asked
        return int((time.monotonic() + self._ahead) * 1000)
