"""A worker and a broker for the tests of the queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import dramatiq

from relay.adapters.dramatiq.broker import RelayBroker, create_broker


@contextmanager
def working(broker: RelayBroker, threads: int = 2, queues: set[str] | None = None) -> Iterator[dramatiq.Worker]:
    worker = dramatiq.Worker(broker, queues=queues, worker_threads=threads, worker_timeout=100)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(timeout=20_000)


def fresh_broker(url: str, middleware: Sequence[Any] = (), **times: Any) -> RelayBroker:
    return create_broker(url, namespace=f"test-{uuid4().hex}", middleware=list(middleware), **times)


def calls(client: Any) -> dict[str, int]:
    stats = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): int(found["calls"]) for name, found in stats.items()}
