"""Functions that return at once, loaded by the workers of a test (``python:`` and this module)."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from consumer.handlers import handles


def do_nothing(_: dict[str, Any], _session: Session) -> None:
    return


for name in (*range(10), "none"):
    handles(f"hang_{name}")(do_nothing)
