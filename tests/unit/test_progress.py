"""Progress bars of long commands."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from relay.cli.progress import bar


@pytest.mark.anyio
async def test_a_ctrl_c_that_an_await_has_lost_ends_the_work_at_its_next_step() -> None:
    """On Python 3.11 `asyncio.wait_for`, which psycopg uses, loses a cancellation that comes with the answer."""

    async def work() -> None:
        with bar("events", "published") as progress:
            for done in range(1_000):
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
                progress(done, None)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


def test_work_outside_of_a_coroutine_may_show_how_far_it_is() -> None:
    with bar("migrations", "applied") as progress:
        progress(1, 2)
