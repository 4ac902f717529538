"""Functions that never return, loaded by the workers of a test (``python:`` and this module)."""

from __future__ import annotations

import threading
from typing import Any

from sqlalchemy.orm import Session

from consumer.handlers import handles


def hang(_: dict[str, Any], _session: Session) -> None:
    threading.Event().wait()


for number in range(10):
    handles(f"hang_{number}")(hang)
