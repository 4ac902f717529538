"""Tasks as an application has them, loaded by the workers of a test (``RELAY_ACTOR_MODULES``)."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from tasks import TaskContext, task

TABLE = (
    "CREATE TABLE task_effects"
    " (id bigint GENERATED ALWAYS AS IDENTITY, task_id uuid NOT NULL, attempt int NOT NULL, n int NOT NULL)"
)
INSERT = text("INSERT INTO task_effects (task_id, attempt, n) VALUES (:task_id, :attempt, :n)")


class Job(BaseModel):
    n: int = 0
    seconds: float = 0
    #: The worker dies of the first attempt.
    crash: bool = False
    #: The handler waits until this file is gone.
    until_gone: str | None = None


def work(job: Job, session: Session, context: TaskContext) -> None:
    """Leave a trace."""
    session.execute(INSERT, {"task_id": context.task_id, "attempt": context.attempt, "n": job.n})
    time.sleep(job.seconds)
    while job.until_gone is not None and Path(job.until_gone).exists():
        time.sleep(0.02)
    if job.crash and context.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@task("plain", backoff=("100ms", "1s"))
def plain(job: Job, session: Session, context: TaskContext) -> None:
    work(job, session, context)


@task("short", backoff=("100ms", "1s"), time_limit="5s")
def short(job: Job, session: Session, context: TaskContext) -> None:
    work(job, session, context)


@task("fleeting", backoff=("5s", "60s"), time_limit="500ms")
def fleeting(job: Job, session: Session, context: TaskContext) -> None:
    work(job, session, context)


@task("coroutine", backoff=("100ms", "1s"), time_limit="5s")
async def coroutine(job: Job, session: AsyncSession, context: TaskContext) -> None:
    await session.execute(INSERT, {"task_id": context.task_id, "attempt": context.attempt, "n": job.n})


@task("loose", backoff=("100ms", "1s"))
def loose(job: Job) -> None:
    """Take part in no transaction."""


@task("report", queue="reports", priority=90)
def report(job: Job, session: Session, context: TaskContext) -> None:
    work(job, session, context)


@task("broken", max_retries=1, backoff=("100ms", "200ms"))
def broken(job: Job) -> None:
    raise RuntimeError("always")


@task("ends_its_loop")
async def ends_its_loop(job: Job, context: TaskContext) -> None:
    """A task of asyncio that the application begins, and that exits as if all were well."""

    async def leave() -> None:
        raise SystemExit(0)

    await asyncio.gather(asyncio.create_task(leave()), asyncio.sleep(60))
