"""Progress bars on a terminal; elsewhere nothing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from relay.concurrency import is_cancelled


@contextmanager
def bar(what: str, unit: str) -> Iterator[Callable[[int, int | None], None]]:
    """Lend a function that shows on stderr how much of the whole is done. ``unit``: what is counted.

    The function also ends a coroutine that was cancelled: Ctrl-C does that, and an await may lose it.
    """
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn())
    hidden = not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=hidden) as shown:
        task = shown.add_task(what, total=None)

        def show(done: int, total: int | None) -> None:
            shown.update(task, completed=done, total=total)
            if _in_coroutine() and is_cancelled():
                raise asyncio.CancelledError

        yield show


def _in_coroutine() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
