"""What schedulers send and what workers do is one list: `relay.jobs`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from relay import jobs
from relay.adapters.dramatiq.shares import share_of
from relay.domain.schedule import WaitingRun
from relay.domain.tasks import TaskRef

ROOT = Path(__file__).parents[2]
KINDS = [value for value in vars(jobs).values() if isinstance(value, jobs.DutyKind)]
#: The actors of a worker, and their queues.
ACTORS = """
import json
import relay.actors
from relay.worker import broker, runtime
queues = {name: broker.get_actor(name).queue_name for name in broker.get_declared_actors()}
print(json.dumps([queues, sorted(runtime.on_loop)]))
"""
CONFIG = """
[contexts.sea]
database_url = "postgresql://nobody@127.0.0.1:9/sea"
"""


def test_for_each_kind_of_job_a_worker_has_an_actor_at_its_queue_and_no_other(tmp_path: Path) -> None:
    config = tmp_path / "relay.toml"
    config.write_text(CONFIG)
    environment = {"PATH": os.environ["PATH"], "RELAY_CONFIG": str(config)}
    command = [sys.executable, "-c", ACTORS]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=True
    )
    of_rows = {
        jobs.HANDLE_MESSAGE: jobs.HANDLE_QUEUE,
        jobs.HANDLE_CHUNK: jobs.HANDLE_QUEUE,
        jobs.RUN_CRON: jobs.CRON_QUEUE,
        jobs.RUN_TASK: jobs.task_queue(),
    }
    queues, on_loop = json.loads(done.stdout)
    assert queues == {kind.actor: kind.queue for kind in KINDS} | of_rows
    assert {"publish_shard", "pull_messages"} <= {kind.actor for kind in KINDS if kind.waits} <= {*on_loop}


def test_no_two_duties_share_a_gate() -> None:
    keys = [kind.of(context, *about).key for kind in KINDS for context in "ab" for about in ((), ("s",), (1,))]
    assert len({*keys}) == len(keys)
    assert jobs.PULL.of("sea", "from_up").key == "pull:sea:from_up"


def test_a_job_knows_whom_it_is_for_and_what_its_gate_has_given() -> None:
    message = jobs.RECONCILE_INBOX.of("sea", "from_up").message("token", 7)
    assert (message.queue_name, message.actor_name) == (jobs.UPKEEP_QUEUE, "reconcile_inbox")
    assert message.args == ("sea", "from_up", 7, "token")


def test_jobs_of_rows_are_of_the_share_of_whom_they_are_for() -> None:
    one, other = str(uuid4()), str(uuid4())
    alone, several = jobs.handle("sea", "from_up", [one]), jobs.handle("sea", "from_up", [one, other])
    assert (alone.actor_name, str(jobs.handled_id(alone))) == (jobs.HANDLE_MESSAGE, one)
    assert (several.actor_name, several.args[2]) == (jobs.HANDLE_CHUNK, [one, other])
    assert share_of(alone) == share_of(several) == jobs.share("sea", "from_up") == "sea/from_up"
    run = jobs.run_cron("sea", WaitingRun("nightly", datetime(2026, 1, 1, tzinfo=UTC)))
    assert (run.args, share_of(run)) == (("sea", "nightly", "2026-01-01T00:00:00+00:00"), "sea/nightly")
    task = jobs.run_task("sea", TaskRef(uuid4(), "mail.v1", "mail", 3))
    assert (task.queue_name, share_of(task), task.options["task_priority"]) == ("relay-task-mail", "sea", 3)
    assert jobs.task_of(task)[0] == "mail.v1"
