"""Threads for plain functions are used again."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from relay.concurrency import Threads


def test_threads_are_used_again() -> None:
    threads, seen, done = Threads(), set[int](), SimpleQueue[None]()

    def work() -> None:
        seen.add(threading.get_ident())
        done.put(None)

    for _ in range(50):
        threads.run(work)
        done.get(timeout=10)
    assert len(seen) <= 3
