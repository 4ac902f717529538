"""Log lines of what befalls one event, message or task carry its correlation and its causation."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
import structlog

from relay.bus import RequestContext
from relay.domain.facts import (
    AlertFailed,
    EventDied,
    Fact,
    IncidentRecorded,
    MessageDeadLettered,
    MessageProcessed,
    MessageRetried,
    PublishFailed,
    RowsArchived,
    TaskCompleted,
    TaskFailed,
    TaskRetried,
)
from relay.telemetry.logs import LogFacts, configure

CORRELATION, CAUSATION = uuid4(), uuid4()


@pytest.fixture
def log_format() -> str:
    return "json"


@pytest.fixture
def stream(log_format: str) -> Iterator[io.StringIO]:
    root, level, handlers = logging.getLogger(), logging.getLogger().level, logging.getLogger().handlers[:]
    configure("DEBUG", log_format)
    handler = root.handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(found := io.StringIO())
    yield found
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_the_class_of_a_dead_letter_has_one_name(stream: io.StringIO) -> None:
    LogFacts()(told(MessageDeadLettered))
    LogFacts()(told(RowsArchived))
    letter, archived = map(json.loads, stream.getvalue().splitlines())
    assert ("class" in letter, "kind" in letter) == (True, False)
    assert ("class" in archived, "kind" in archived) == (False, True)


def told(kind: type[Fact], **ids: UUID | None) -> Fact:
    values = dict.fromkeys((field.name for field in dataclasses.fields(kind)), 1) | {"context": "sea", **ids}
    return kind(**values)


@pytest.mark.parametrize(
    "kind",
    [
        PublishFailed,
        EventDied,
        MessageProcessed,
        MessageRetried,
        MessageDeadLettered,
        IncidentRecorded,
        TaskCompleted,
        TaskRetried,
        TaskFailed,
    ],
)
def test_a_line_carries_both_ids(stream: io.StringIO, kind: type[Fact]) -> None:
    LogFacts()(told(kind, correlation_id=CORRELATION, causation_id=CAUSATION))
    [line] = map(json.loads, stream.getvalue().splitlines())
    assert (line["event"], line["correlation_id"], line["causation_id"]) == (
        kind.__name__,
        str(CORRELATION),
        str(CAUSATION),
    )


def test_a_tick_that_is_left_out_while_one_hangs_is_no_line(stream: io.StringIO) -> None:
    """The scheduler says once that the one that hangs gave up."""
    logging.getLogger("apscheduler.scheduler").warning('Execution of job "publish:sea" skipped')
    assert stream.getvalue() == ""


def test_the_ids_of_the_fact_win_over_those_of_the_code_that_states_it(stream: io.StringIO) -> None:
    with RequestContext(correlation_id=uuid4(), causation_id=uuid4()).use():
        LogFacts()(told(MessageRetried, correlation_id=CORRELATION, causation_id=CAUSATION))
    [line] = map(json.loads, stream.getvalue().splitlines())
    assert (line["correlation_id"], line["causation_id"]) == (str(CORRELATION), str(CAUSATION))


@pytest.mark.parametrize("log_format", ["console"])
def test_text_of_a_stranger_neither_moves_the_cursor_nor_begins_a_line(stream: io.StringIO) -> None:
    hostile = "x\n2026-01-01 [error] forged\r\x1b[31m\x9b31m\u2028\x00"
    LogFacts()(AlertFailed(context=hostile, error=hostile, waiting=1))
    logging.getLogger("relay.ops").error("GET %s failed", hostile)
    logging.getLogger("shop").error("%s", hostile)
    ours, others, theirs = stream.getvalue().partition("shop")[0], stream.getvalue(), stream.getvalue()
    assert not {*"\r\x1b\x9b\u2028\x00"} & {*others}
    assert "\\n2026-01-01 [error] forged" in ours
    # What an application says may have several lines.
    assert len(theirs.splitlines()) == 4
