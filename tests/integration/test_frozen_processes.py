"""A frozen process does nothing more, whichever of its threads was about to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from relay.devstack import processes

THREADS = """
import hashlib, sys, threading
started = threading.Barrier(65)
def work():
    started.wait()
    while True:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000)  # without the interpreter's lock
for _ in range(64):
    threading.Thread(target=work, daemon=True).start()
started.wait()
print("run", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="only Linux tells the states of threads")
def test_no_thread_of_a_frozen_process_runs() -> None:
    program = [sys.executable, "-c", THREADS]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"run\n"
            for _ in range(5):
                processes.freeze(process.pid)
                stats = [it.read_text() for it in Path(f"/proc/{process.pid}/task").glob("*/stat")]
                assert [stat.rpartition(")")[2].split()[0] for stat in stats] == ["T"] * 65
                processes.thaw(process.pid)
        finally:
            process.kill()
