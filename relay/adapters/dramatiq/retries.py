"""Dramatiq's retry middleware on the relay's back-off: one curve for rows and for jobs (`relay.domain.retry`).

A row's delay is decided where its error is recorded, and this middleware applies it. A job that waits for a server
has no row: for it the middleware takes the delay from the back-off of its actor. Actors of the application keep
Dramatiq's own curve.
"""

from __future__ import annotations

import logging
import random
from datetime import timedelta
from typing import Any, Final

from dramatiq.broker import Broker, MessageProxy
from dramatiq.errors import Retry
from dramatiq.middleware import Retries

from relay.domain.disclosure import safe_text

_log = logging.getLogger("relay.retries")
#: The option of an actor that holds its `Backoff`.
BACKOFF: Final = "backoff"


class RetryJob(Retry):
    """Try a job again after a delay. Its text is as `shown` says."""

    def __init__(self, delay: timedelta, why: str | None = None) -> None:
        super().__init__(shown(delay, why), int(delay / timedelta(milliseconds=1)))


def shown(delay: timedelta, why: str | None = None) -> str:
    """A retry for logs and dashboards: ``Retry("HTTP 503", in 4 s)``. It holds codes and names, and no payload.

    ``why``: by default what a `Later` knows.
    """
    seconds = delay.total_seconds()
    wait = f"{seconds:.3g}" if seconds < 100 else f"{seconds:.0f}"
    return f'Retry("{why or getattr(delay, "why", "again")}", in {wait} s)'


class BackoffRetries(Retries):
    """Retries the jobs of actors that have the option ``backoff`` by it, and all others as Dramatiq does."""

    @property
    def actor_options(self) -> set[str]:
        return {*super().actor_options, BACKOFF}

    def after_process_message(
        self, broker: Broker, message: MessageProxy, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        if exception is None:
            return
        apply: Any = super().after_process_message
        backoff = broker.get_actor(message.actor_name).options.get(BACKOFF)
        if backoff is None:
            apply(broker, message, exception=exception)
            return
        if not isinstance(exception, RetryJob):
            failures = message.options.get("retries", 0) + 1
            why = str(exception) if isinstance(exception, Retry) else safe_text(exception)
            exception = RetryJob(backoff.delay(failures, random.random()), why)  # noqa: S311
        _log.info("%s: %s(%s)", exception, message.actor_name, message.message_id)
        try:
            # Dramatiq stores the traceback of the error being handled. This one is short and holds no data.
            raise exception from None
        except RetryJob:
            apply(broker, message, exception=exception)
