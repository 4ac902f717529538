"""The Python handlers of a run: ``handler = "python:chaos.handlers"``.

One runs in a thread and one on the worker's loop, because jetrelay treats them differently. Each writes its effect
in the transaction of the inbox row and then behaves as the plan says. Faults make them rude: see `rude_handlers`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import psycopg
from pydantic import BaseModel

from chaos.history import History, Leftover, Source
from chaos.plan import Answer, answer_to
from chaos.rude_handlers import FOUND, LEAVING, RAISING, asked, leave, raised_by
from chaos.tables import INSERT_EFFECT, READ_SETTINGS, HandlerSettings
from consumer.handlers import AlreadyProcessed, MessageContext, Poison, handles


class Case(BaseModel):
    """The payload of every event of a run."""

    key: str


class HandlerFailed(Exception):
    """Raised by a handler so that it is called again."""


_known: Final[dict[str, HandlerSettings]] = {}
_histories: Final[dict[str, History]] = {}
_lock: Final = threading.Lock()


@handles("python", version=1)
def write(case: Case, connection: psycopg.Connection[Any], context: MessageContext) -> None:
    """Write the effect in a thread. A call that hangs runs past its time-out and then tries to commit."""
    settings = _known.get(connection.info.dsn)
    if settings is None:
        settings = _keep(connection.info.dsn, connection.execute(READ_SETTINGS).fetchone())
    leaves = asked(settings.history, LEAVING)
    with _recorded(settings, Source.PYTHON, context) as answer:
        if leaves:
            _note(settings, context, connection.execute(FOUND).fetchone())
        connection.execute(INSERT_EFFECT, _effect(context, Source.PYTHON, case))
        _behave(answer, settings, context)
        if answer is Answer.HANG:
            time.sleep(settings.hang)
        if leaves:
            connection.execute(*_left(context))


@handles("ordered", version=1)
async def write_in_order(case: Case, connection: psycopg.AsyncConnection[Any], context: MessageContext) -> None:
    """Write the effect on the event loop. A call that hangs is cancelled."""
    settings = _known.get(connection.info.dsn)
    if settings is None:
        settings = _keep(connection.info.dsn, await (await connection.execute(READ_SETTINGS)).fetchone())
    leaves = asked(settings.history, LEAVING)
    with _recorded(settings, Source.ORDERED, context) as answer:
        if leaves:
            _note(settings, context, await (await connection.execute(FOUND)).fetchone())
        await connection.execute(INSERT_EFFECT, _effect(context, Source.ORDERED, case))
        _behave(answer, settings, context)
        if answer is Answer.HANG:
            await asyncio.sleep(settings.hang)
        if leaves:
            await connection.execute(*_left(context))


def _effect(context: MessageContext, source: Source, case: Case) -> dict[str, Any]:
    return {"message_id": context.message_id, "source": source.value, "key": case.key}


@contextmanager
def _recorded(settings: HandlerSettings, source: Source, context: MessageContext) -> Iterator[Answer]:
    """Record the call from here to the end of the block, and yield the answer that it must give."""
    answer = answer_to(context.message_id, settings.seed, context.attempt)
    if settings.history is None:
        yield answer
        return
    history = _history(settings.history)
    begun, told = history.begin(str(context.message_id), source), Answer.ERROR
    try:
        yield answer
        told = answer
    except (AlreadyProcessed, Poison, HandlerFailed):
        told = answer
        raise
    except asyncio.CancelledError:
        told = Answer.HANG
        raise
    finally:
        history.end(begun, told.value)


def _note(settings: HandlerSettings, context: MessageContext, row: tuple[Any, ...] | None) -> None:
    """Record what another call has left in this session."""
    if settings.history is not None and row is not None and row[0]:
        _history(settings.history).write(Leftover(str(context.message_id), row[0]))


def _left(context: MessageContext) -> tuple[bytes, dict[str, int]]:
    statement, values = leave(UUID(str(context.message_id)))
    return statement.encode(), values


def _behave(answer: Answer, settings: HandlerSettings, context: MessageContext) -> None:
    match answer:
        case Answer.REPEAT:
            raise AlreadyProcessed("the plan says that this was done before")
        case Answer.POISON:
            raise Poison("the plan says that this cannot be handled")
        case Answer.ERROR | Answer.DROP if asked(settings.history, RAISING):
            raise raised_by(context.message_id, context.attempt)("the plan says that this call fails")
        case Answer.ERROR | Answer.DROP:
            raise HandlerFailed("the plan says that this call fails")


def _keep(dsn: str, row: Any) -> HandlerSettings:
    """Remember the settings of a database: they do not change in a run."""
    settings = _known[dsn] = HandlerSettings.of(row)
    return settings


def _history(directory: str) -> History:
    with _lock:
        if directory not in _histories:
            _histories[directory] = History(Path(directory) / f"calls-{os.getpid()}.jsonl")
        return _histories[directory]
