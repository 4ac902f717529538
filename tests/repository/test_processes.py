"""What only a process of its own can show: logging set up, another seed of hashes, a kill."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from uuid import UUID

from prometheus_client import CollectorRegistry

from chaos.plan import failures_of, plan_of
from relay.telemetry.gauges import UsageGauges
from relay.telemetry.liveness import stuck_in
from tests.unit.test_chaos_plan import SEED, ids

ROOT = Path(__file__).parents[2]
LINES = """
import logging, structlog
from uuid import UUID
from relay.bus import RequestContext
from relay.telemetry import logs

logs.configure("INFO", "json")
trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
with RequestContext(correlation_id=UUID(int=1), causation_id=UUID(int=2), traceparent=trace).use():
    logging.getLogger("myapp").info("one")
    structlog.stdlib.get_logger("myapp").info("two")
    structlog.stdlib.get_logger("myapp").info("three", correlation_id="its own")
logging.getLogger("myapp").info("four")
"""
KILLED = """
import os, sys
from pathlib import Path
from relay.telemetry.liveness import Heartbeat

heartbeat = Heartbeat(Path(sys.argv[1]))
os.kill(os.getpid(), 9)
"""


def test_every_log_line_carries_the_context() -> None:
    # A process of its own: logging is set up once in each.
    done = subprocess.run([sys.executable, "-c", LINES], capture_output=True, text=True, check=True, timeout=60)
    one, two, three, four = map(json.loads, done.stderr.splitlines())
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    ids = {"correlation_id": str(UUID(int=1)), "causation_id": str(UUID(int=2)), "trace_id": trace}
    assert ids.items() <= one.items()
    assert ids.items() <= two.items()
    assert three["correlation_id"] == "its own"
    assert not ids.keys() & four.keys()


def test_another_process_finds_the_same_plans() -> None:
    program = (
        "import sys; from chaos.plan import plan_of, failures_of\n"
        f"for id in sys.argv[1:]: print(plan_of(id, {SEED}), failures_of(id, {SEED}))"
    )
    names = [str(id) for id in ids(300)]
    printed = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True, check=True)
    assert printed.stdout.split("\n")[:-1] == [f"{plan_of(id, SEED)} {failures_of(id, SEED)}" for id in names]


def test_a_process_that_was_killed_is_not_waited_for(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, check=False)
    assert done.returncode == -9
    assert len([*tmp_path.iterdir()]) == 1
    registry = CollectorRegistry()
    registry.register(UsageGauges(tmp_path))
    assert registry.get_sample_value("jetrelay_worker_threads") == 0
    assert len(stuck_in(tmp_path)) == 1
    assert [*tmp_path.iterdir()] == []
