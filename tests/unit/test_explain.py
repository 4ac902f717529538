"""The life of a message as a tree, made of rows as tables and archives have them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from relay.adapters.postgres.life import KINDS
from relay.domain.durations import duration
from relay.domain.identity import Identity
from relay.domain.life import LifeSearch, Step, StepKind
from relay.ops.explain.gathering import Gathered, _grown, _read, _since, _wants
from relay.ops.explain.tree import steps

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
CHAIN = uuid4()


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def event(id: UUID, cause: UUID | None = None, **values: Any) -> dict[str, Any]:
    row = {
        "id": id,
        "event_type": "made",
        "event_version": 1,
        "aggregate_type": "case",
        "aggregate_id": "1",
        "occurred_at": at(0),
        "correlation_id": CHAIN,
        "causation_id": cause,
        "originals": None,
        "partition_key": "case:1",
        "publish_attempts": 1,
        "publish_error": None,
        "available_at": None,
        "dead_at": None,
        "expires_at": None,
        "published_at": at(0.5),
        "published_stream": "UP_EVENTS",
        "published_seq": 7,
        "generation": 0,
        "traceparent": None,
    }
    return row | values


def message(id: UUID, **values: Any) -> dict[str, Any]:
    row = {
        "message_id": id,
        "subscription": "from_up",
        "subject": "up.event.made.v1",
        "stream": "UP_EVENTS",
        "stream_seq": 7,
        "event_type": "made",
        "event_version": 1,
        "received_at": at(1),
        "attempts": 2,
        "processed_at": at(3),
        "last_error": None,
        "next_attempt_at": None,
        "running": None,
        "dead_letter_reason": None,
        "dead_letter_class": None,
        "dead_lettered_at": None,
        "requeues": 0,
        "correlation_id": CHAIN,
        "causation_id": None,
        "originals": None,
        "traceparent": None,
    }
    return row | values


def incident(number: int, id: UUID) -> dict[str, Any]:
    return {
        "id": number,
        "message_id": id,
        "subscription": "from_up",
        "event_type": "made",
        "recorded_at": at(3),
        "class": "poison",
        "reason": "no such case",
        "attempts": 2,
        "status": "requeued",
        "closed_at": at(9),
        "closed_by": "ann",
        "stream": "UP_EVENTS",
        "stream_seq": 7,
        "correlation_id": CHAIN,
        "causation_id": None,
        "originals": None,
        "traceparent": None,
    }


def task(id: UUID, cause: UUID | None) -> dict[str, Any]:
    return {
        "id": id,
        "type": "mail",
        "queue": "default",
        "status": "completed",
        "created_at": at(2.9),
        "available_at": None,
        "started_at": at(4),
        "finished_at": at(5),
        "next_attempt_at": None,
        "attempts": 1,
        "last_error": None,
        "correlation_id": CHAIN,
        "causation_id": cause,
        "originals": None,
        "traceparent": None,
    }


def found(**contexts: dict[str, list[dict[str, Any]]]) -> Gathered:
    found = Gathered()
    for name, rows in contexts.items():
        found.add(name, {kind: rows.get(kind, []) for kind in KINDS})
    return found


def lines(these: list[Step] | tuple[Step, ...], depth: int = 0) -> list[str]:
    """A line for each step, indented."""
    told = []
    for step in these:
        told.append(f"{'  ' * depth}{step.kind} {step.context} {step.name} {step.state}")
        told += lines(tuple(step.children), depth + 1)
    return told


def test_a_chain_over_two_contexts_is_one_tree() -> None:
    first, second, later = uuid4(), uuid4(), uuid4()
    action = {"id": 1, "at": at(9), "actor": "ann", "action": "dlq.requeue", "note": "mended", "ids": ["41", "42"]}
    tree = steps(
        found(
            sea={
                "messages": [message(first)],
                "incidents": [incident(42, first)],
                "actions": [action],
                "events": [
                    event(second, cause=first, occurred_at=at(2.8), published_at=None, published_stream=None)
                ],
                "tasks": [task(later, cause=first)],
            },
            up={"events": [event(first)]},
        )
    )
    assert lines(tree) == [
        "event up made v1 published",
        "  publication up UP_EVENTS stored",
        "    message sea from_up processed",
        "      event sea made v1 failing",
        "      task sea mail completed",
        "      incident sea from_up requeued",
        "        action sea dlq.requeue done",
    ]
    [root] = tree
    delivery = root.children[0].children[0]
    assert (root.took, root.children[0].after, delivery.after, delivery.took) == (0.5, 0.5, 0.5, 2.0)
    assert [child.after for child in delivery.children] == [1.8, 1.9, 2.0]


def test_a_message_of_another_system_begins_its_tree() -> None:
    id = Identity.of("evt_7").uuid
    [root] = steps(found(sea={"messages": [message(id, originals={"id": "evt_7"})]}))
    assert (root.kind, root.id, root.after) == (StepKind.MESSAGE, "evt_7", None)


def test_ids_that_name_each_other_as_cause_make_no_circle() -> None:
    one, other = uuid4(), uuid4()
    tree = steps(found(up={"events": [event(one, cause=other), event(other, cause=one)]}))
    assert len(tree) == 1
    assert sum("event" in line for line in lines(tree)) == 2


def test_a_run_of_a_cron_job_is_above_what_it_began_in_its_context_only() -> None:
    run = {
        "id": 1,
        "job": "nightly",
        "scheduled_for": at(-1),
        "state": "finished",
        "opened_at": at(-1),
        "started_at": at(-1),
        "finished_at": at(0),
        "attempts": 1,
        "error": None,
        "correlation_id": CHAIN,
    }
    tree = steps(found(sea={"runs": [run], "events": [event(uuid4())]}, up={"events": [event(uuid4())]}))
    assert [(step.kind, step.context, len(step.children)) for step in tree] == [
        (StepKind.RUN, "sea", 1),
        (StepKind.EVENT, "up", 1),
    ]


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ({"processed_at": None, "attempts": 0}, "waiting"),
        ({"processed_at": None}, "retrying"),
        ({"processed_at": None, "running": True}, "running"),
        ({"processed_at": None, "dead_lettered_at": at(3), "dead_letter_reason": "why"}, "dead letter"),
    ],
)
def test_a_delivery_tells_where_it_stands(values: dict[str, Any], state: str) -> None:
    [step] = steps(found(sea={"messages": [message(uuid4(), **values)]}))
    assert step.state == state
    assert step.error == values.get("dead_letter_reason")


# --- traces ---

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SENT = f"00-{TRACE}-00f067aa0ba902b7-01"


FOREIGN = [SENT.upper(), f"00-{'0' * 32}-00f067aa0ba902b7-01", TRACE, "<b>no trace</b>", 17, None]


@pytest.mark.parametrize(("traceparent", "shown"), [(SENT, TRACE), *((it, None) for it in FOREIGN)])
def test_what_carries_a_trace_names_it_and_a_header_of_another_form_is_no_trace(
    traceparent: object, shown: str | None
) -> None:
    kinds = {"events": [event(uuid4())], "messages": [message(uuid4())], "incidents": [incident(7, uuid4())]}
    kinds |= {"tasks": [task(uuid4(), None)]}
    rows = {kind: [row | {"traceparent": traceparent} for row in rows] for kind, rows in kinds.items()}
    found_steps = [step for step in steps(found(sea=rows)) if step.kind is not StepKind.PUBLICATION]
    assert [step.trace_id for step in found_steps] == [shown] * 4


@pytest.mark.parametrize(
    ("row", "carried"),
    [
        ({"headers": {"traceparent": "", "Traceparent": SENT}}, SENT),
        ({"metadata": {"traceparent": SENT}}, SENT),
        *((row, None) for row in ({"headers": [SENT]}, {"headers": SENT}, {"headers": None, "metadata": 7}, {})),
    ],
)
def test_an_archived_row_has_its_trace_in_headers_or_metadata_whatever_else_they_are(
    row: dict[str, Any], carried: str | None
) -> None:
    assert _read(row)["traceparent"] == carried


# --- what is looked for ---


def test_an_id_may_be_of_any_kind() -> None:
    id = uuid4()
    assert LifeSearch.of(str(id)).ids == LifeSearch.of(str(id)).correlations == {id}
    assert LifeSearch.of("evt_7").ids == {Identity.of("evt_7").uuid}
    assert LifeSearch.of("UP_EVENTS:7").place == ("UP_EVENTS", 7)
    assert LifeSearch.of("42").incident == 42
    assert LifeSearch.of("evt_7").place is LifeSearch.of("evt_7").incident is None


def test_what_is_found_says_what_to_look_for_next() -> None:
    first, cause = uuid4(), uuid4()
    grown = _grown(LifeSearch.of("x"), found(up={"events": [event(first, cause=cause)]}))
    assert {first, cause} <= grown.ids
    assert CHAIN in grown.correlations
    assert grown.causes == set()
    alone = _grown(LifeSearch.of("x"), found(up={"events": [event(first, correlation_id=None)]}))
    assert alone.causes == {first}


def test_an_archive_is_read_from_the_time_of_the_chain_on() -> None:
    assert _since("evt_7", found()) is None
    month = timedelta(days=30)
    assert _since("evt_7", found(up={"events": [event(uuid4())]})) == at(0) - month
    timed = UUID("0190a5c2-1c00-7000-8000-000000000000")
    made = datetime.fromtimestamp(0x0190A5C21C00 / 1000, UTC)
    assert _since(str(timed), found()) == made - month
    assert _since("evt_7", found(up={"events": [event(uuid4(), correlation_id=timed)]})) == made


def test_an_archived_row_is_known_by_any_of_its_ids() -> None:
    id = uuid4()
    row = {"id": str(id), "correlation_id": None, "causation_id": None, "originals": None}
    place = {"published_stream": "UP_EVENTS", "published_seq": 7}
    assert _wants(LifeSearch.of(str(id)), row)
    assert _wants(LifeSearch.of("evt_7"), {**row, "originals": {"id": "evt_7"}})
    assert _wants(LifeSearch.of(str(CHAIN)), {**row, "correlation_id": str(CHAIN)})
    assert _wants(LifeSearch.of("UP_EVENTS:7"), {**row, **place})
    assert not _wants(LifeSearch.of("UP_EVENTS:8"), {**row, **place})
    assert not _wants(LifeSearch.of("other"), {**row, "correlation_id": str(CHAIN)})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0123, "12 ms"), (1.5, "1.5 s"), (300, "5 min"), (9_000, "2.5 h"), (1_036_800, "12 d")],
)
def test_durations_are_read_at_a_glance(seconds: float, text: str) -> None:
    assert duration(seconds) == text
