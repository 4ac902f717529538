"""Functions that fail, hang, or are done at once, loaded by the workers of a test."""

from __future__ import annotations

import threading
from typing import Any

from sqlalchemy.orm import Session

from consumer.handlers import handles


@handles("failing")
def fail(_: dict[str, Any], _session: Session) -> None:
    raise ValueError("always")


@handles("away")
def refuse(_: dict[str, Any], _session: Session) -> None:
    raise ConnectionError("no route to the ledger")


@handles("hanging")
def hang(_: dict[str, Any], _session: Session) -> None:
    threading.Event().wait()


@handles("good")
def succeed(_: dict[str, Any], _session: Session) -> None:
    return
