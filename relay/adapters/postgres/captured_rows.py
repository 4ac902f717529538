"""For tests of applications: takes the rows of their sessions instead of writing them. No database is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from relay.adapters.postgres.enqueue import Row
from relay.domain.errors import UnsupportedTarget

Capture: TypeAlias = Callable[[Sequence[Row]], None]

_capture: Capture | None = None


@contextmanager
def capturing(take: Capture) -> Iterator[None]:
    """Give the rows of sessions that commit in this block to ``take``.

    Connections are refused, because this code cannot see whether they commit.
    """
    global _capture  # noqa: PLW0603 - for all threads: an application may commit in any of them
    before, _capture = _capture, take
    try:
        yield
    finally:
        _capture = before


def capture() -> Capture | None:
    """Return what takes the rows of sessions now; None outside of tests."""
    return _capture


def check(kind: type) -> None:
    """Raise UnsupportedTarget if rows are taken, and cannot be taken from a target of this kind."""
    if _capture is not None and not issubclass(
        kind, Session | scoped_session | AsyncSession | async_scoped_session
    ):
        raise UnsupportedTarget(
            f"{kind.__module__.partition('.')[0]}'s {kind.__name__} cannot be used with an outbox in memory",
            field="target",
            hint="pass a SQLAlchemy session, or test on real servers: docs/how-to/testing.md",
        )
