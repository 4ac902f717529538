"""Who claims rows: this process, as its claims and its notes about attempts name it."""

from __future__ import annotations

import json
import os
import random
import socket
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final
from uuid import UUID

from relay.domain.attempts import noted
from relay.domain.claim_tokens import CHANCE_BITS, mark_of, token_of
from relay.domain.policies import Ack, DeadLetter, Disposition, Retry

# Of its own, and of the system: processes that are copied from one another must not have the same tokens.
_CHANCE: Final = random.SystemRandom()


@cache
def _mark(pid: int) -> int:
    return mark_of(socket.gethostname(), pid)


@cache
def _release() -> str:
    try:
        return version("jetrelay")
    except PackageNotFoundError:
        return ""


def claim_token() -> UUID:
    """Return the token of a new claim of this process. No other claim has it."""
    return token_of(time.time_ns() // 1_000_000, _mark(os.getpid()), _CHANCE.getrandbits(CHANCE_BITS))


def this_worker() -> str:
    """This process, as notes about attempts name it: host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def note_of(verdict: Disposition) -> str | None:
    """What is noted about an attempt that failed, as JSON; None for one that succeeded."""
    match verdict:
        case Ack():
            return None
        case DeadLetter(reason):
            return _noted("dead", reason, verdict.seconds)
        case Retry(_, error, counts):
            return _noted("failed" if counts else "put off", error, verdict.seconds)


def note_of_failure(error: str, seconds: float | None = None) -> str:
    """What is noted about the last attempt at a task."""
    return _noted("dead", error, seconds)


def about_worker() -> str:
    """This process, as JSON for a note that the statement makes."""
    return json.dumps({"worker": this_worker(), "release": _release()})


def _noted(outcome: str, error: str, seconds: float | None) -> str:
    return json.dumps(noted(outcome, error, seconds, this_worker(), _release()))
