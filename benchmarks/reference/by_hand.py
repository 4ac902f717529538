"""(e) By hand: two processes with eight threads each that handle stored messages, and nothing else.

For each message: a session, the row that the handler writes, the mark of the inbox row, the commit. No claim, no
job, no acknowledgement. Run as a program, this is one of the processes.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final
from uuid import UUID

import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from benchmarks.handlers import EFFECTS
from benchmarks.workload import TEXT

_ROOT: Final = Path(__file__).parents[2]
_PROCESSES: Final = 2
_THREADS: Final = 8
_FILL: Final = """
INSERT INTO inbox_messages (message_id, subject, subscription, stream, stream_seq, ack_subject, body, headers,
                            event_type, event_version, occurred_at, enqueued_at)
SELECT uuidv7(), 'source.event.writing.v1', 'writing', 'SOURCE_EVENTS', n, '', convert_to(%(text)s, 'UTF8'), '{}',
       'writing', 1, now(), now()
FROM generate_series(1, %(count)s::int) AS n
"""
_EFFECT: Final = text("INSERT INTO benchmark_effects (message_id, n) VALUES (:message_id, :n)")
_MARK: Final = text("UPDATE inbox_messages SET processed_at = now() WHERE message_id = :message_id")


def rate(url: str, count: int) -> float:
    """Messages per second, of messages that are in the inbox all at once."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(EFFECTS)
        connection.execute("TRUNCATE inbox_messages, benchmark_effects CASCADE")
        connection.execute(_FILL, {"count": count, "text": TEXT})
    command = [sys.executable, "-m", "benchmarks.reference.by_hand", url]
    pipe = subprocess.PIPE
    begun = [
        subprocess.Popen([*command, str(part)], cwd=_ROOT, stdin=pipe, stdout=pipe) for part in range(_PROCESSES)
    ]
    for process in begun:
        assert process.stdout is not None
        process.stdout.readline()  # it is ready
    start = time.perf_counter()
    for process in begun:
        process.communicate(b"\n")
    seconds = time.perf_counter() - start
    if any(process.returncode for process in begun):
        raise SystemExit("a process of the reference by hand has failed")
    return count / seconds


def _work(url: str, part: int) -> None:
    with psycopg.connect(url) as connection:
        ids = [id for (id,) in connection.execute("SELECT message_id FROM inbox_messages ORDER BY stream_seq")]
    waiting = SimpleQueue[UUID]()
    for id in ids[part::_PROCESSES]:
        waiting.put(id)
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"), pool_size=_THREADS)

    def handle() -> None:
        while True:
            try:
                id = waiting.get_nowait()
            except Empty:
                return
            with Session(engine) as session:
                session.execute(_EFFECT, {"message_id": id, "n": 1})
                session.execute(_MARK, {"message_id": id})
                session.commit()

    threads = [threading.Thread(target=handle) for _ in range(_THREADS)]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    _work(sys.argv[1], int(sys.argv[2]))
