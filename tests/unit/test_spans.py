"""Spans of OpenTelemetry: made of facts and where events are created, sent without ever holding anything up."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from relay import Event, Outbox, RequestContext
from relay.bus.context import next_span
from relay.domain.errors import ConfigurationError, MissingExtraError
from relay.domain.facts import (
    Fact,
    HandlerAnswered,
    MessagesReceived,
    OutboxEventsPublished,
    Publication,
    TaskAnswered,
    Traced,
)
from relay.domain.traceparent import Trace, call_span
from relay.settings import Settings, TracingSettings
from relay.telemetry.spans.provider import Tracing, exporter
from relay.tracing import fleet_tracing, instrument
from tasks.outbox import background_task
from tests.tracing_support import Recorded, id_of, linked, parent_of, recording, trace_of

TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736
NOW = datetime(2026, 11, 23, tzinfo=UTC)


def header(span: int, *, sampled: bool = True) -> str:
    return Trace(f"{TRACE:032x}", f"{span:016x}", int(sampled)).value


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    with recording() as recorded:
        yield recorded


def published(*traces: str | None) -> Fact:
    events = [Publication(str(n), "made", "shop.event.made.v1", NOW, it) for n, it in enumerate(traces)]
    return OutboxEventsPublished(
        context="shop", events=events, duplicates=0, seconds=0.25, latencies=[], begun=1_000.0
    )


def answered(verdict: str = "processed", *, sampled: bool = True) -> Fact:
    parent, span = header(0xA, sampled=sampled), header(0xB, sampled=sampled)
    traced = Traced(parent, span, uuid4(), "order 7", "shop.event.made.v1", 2, verdict)
    return HandlerAnswered(context="shop", subscription="from_shop", seconds=1.5, traced=traced)


# --- of facts ---


def test_a_batch_is_one_span_with_a_link_to_each_event_that_is_recorded(recorded: Recorded) -> None:
    recorded.listener(published(header(1), None, "no trace", header(2, sampled=False), header(3)))
    span = recorded.one("send shop")
    assert linked(span) == [1, 3]
    assert {link.context.trace_id for link in span.links} == {TRACE}
    assert (span.kind, span.parent) == (SpanKind.CLIENT, None)
    assert (span.start_time, span.end_time) == (1_000_000_000_000, 1_000_250_000_000)
    assert dict(span.attributes or {}) == {
        "messaging.system": "nats",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "shop.event.made.v1",
        "messaging.batch.message_count": 5,
        "jetrelay.context": "shop",
    }


def test_the_receiving_of_a_batch_is_linked_too(recorded: Recorded) -> None:
    about = {"context": "sea", "subscription": "from_shop", "duplicates": 0}
    recorded.listener(MessagesReceived(**about, received=2, traces=[header(1)], begun=1_000.0))
    span = recorded.one("receive from_shop")
    assert linked(span) == [1]
    assert (span.attributes or {})["messaging.consumer.group.name"] == "from_shop"


def test_what_nobody_records_has_no_span(recorded: Recorded) -> None:
    recorded.listener(published(None, header(1, sampled=False)))
    recorded.listener(MessagesReceived(context="sea", subscription="from_shop", received=1, duplicates=0))
    recorded.listener(HandlerAnswered(context="shop", subscription="from_shop", seconds=1.0))
    recorded.listener(answered(sampled=False))
    assert recorded.spans() == []


def test_a_call_is_the_span_that_its_handler_got_below_the_one_that_sent(recorded: Recorded) -> None:
    recorded.listener(answered())
    span = recorded.one("process from_shop")
    assert (trace_of(span), id_of(span), parent_of(span)) == (TRACE, 0xB, 0xA)
    assert (span.kind, span.status.status_code) == (SpanKind.CONSUMER, StatusCode.UNSET)
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time == pytest.approx(1.5e9, rel=1e-3)
    found = dict(span.attributes or {})
    assert found["messaging.message.conversation_id"] == "order 7"
    assert (found["jetrelay.attempt"], found["jetrelay.verdict"]) == (2, "processed")


@pytest.mark.parametrize(
    ("verdict", "error"),
    [("processed", None), ("already_processed", None), ("poison", "poison"), ("transient", "transient")],
)
def test_a_failed_call_is_a_span_with_an_error(recorded: Recorded, verdict: str, error: str | None) -> None:
    recorded.listener(answered(verdict))
    span = recorded.one("process")
    assert (span.attributes or {}).get("error.type") == error
    assert span.status.is_ok == (error is None)


def test_a_task_is_a_span_too_and_the_next_one_has_an_id_of_its_own(recorded: Recorded) -> None:
    traced = Traced(header(0xA), header(0xC), uuid4(), None, "mails", 1, "processed")
    recorded.listener(TaskAnswered(context="shop", task_type="send_mail", seconds=0.1, traced=traced))
    recorded.listener(published(header(1)))
    span = recorded.one("process send_mail")
    assert (id_of(span), parent_of(span)) == (0xC, 0xA)
    assert (span.attributes or {})["messaging.destination.name"] == "mails"
    assert id_of(recorded.one("send")) not in (0xC, 0xA)


def test_each_attempt_has_a_span_id_that_is_known_from_its_claim() -> None:
    token, row = uuid4(), uuid4()
    assert call_span(token, row) == call_span(token, row)
    assert len({call_span(uuid4(), row) for _ in range(20)}) == 20
    assert call_span(row, row) == f"{1:016x}"


# --- of what creates events and tasks ---


def created() -> str | None:
    row = Outbox("shop", undeclared=True)._row(
        Event(event_type="made", aggregate_type="cup", aggregate_id="1", payload={})
    )
    return row.headers.get("traceparent")


def test_an_event_carries_the_span_of_its_creation_below_the_current_one(recorded: Recorded) -> None:
    with recorded.tracer.start_as_current_span("request") as request:
        carried = Trace.parse(created())
        task = background_task("send_mail", {}, registered=False)
    made, scheduled = recorded.one("create made"), recorded.one("create send_mail")
    assert carried is not None
    assert (int(carried.trace_id, 16), int(carried.span_id, 16)) == (trace_of(made), id_of(made))
    assert carried.sampled
    assert parent_of(made) == parent_of(scheduled) == request.get_span_context().span_id
    assert made.kind is SpanKind.PRODUCER
    assert Trace.parse(task.metadata["traceparent"]).span_id == f"{id_of(scheduled):016x}"  # type: ignore[union-attr]


def test_an_event_outside_of_any_span_begins_a_trace(recorded: Recorded) -> None:
    carried = Trace.parse(created())
    made = recorded.one("create made")
    assert carried is not None
    assert int(carried.trace_id, 16) == trace_of(made)
    assert made.parent is None


def test_a_trace_that_an_event_names_itself_stays(recorded: Recorded) -> None:
    own = {"Traceparent": header(7)}
    row = Outbox("shop", undeclared=True)._row(
        Event(event_type="made", aggregate_type="cup", aggregate_id="1", payload={}, headers=own)
    )
    assert row.headers == own
    assert recorded.spans() == []


def test_a_request_context_is_the_current_span_of_the_code_in_it(recorded: Recorded) -> None:
    around = RequestContext(traceparent=header(0xB))
    again = replace(around, causation_id=uuid4())
    with around.use():
        with recorded.tracer.start_as_current_span("of the application") as own, again.use():
            created()
        assert trace.get_current_span().get_span_context().span_id == 0xB
    assert not trace.get_current_span().get_span_context().is_valid
    assert parent_of(recorded.one("of the application")) == 0xB
    assert parent_of(recorded.one("create")) == own.get_span_context().span_id


def test_a_service_continues_the_span_that_is_there_already_else_that_of_its_caller(recorded: Recorded) -> None:
    assert next_span(header(5)) == header(5)
    assert next_span(None) is None
    with recorded.tracer.start_as_current_span("request") as request:
        continued = Trace.parse(next_span(header(5)))
    assert continued is not None
    assert int(continued.span_id, 16) == request.get_span_context().span_id


# --- to an exporter ---


class Stuck(SpanExporter):
    """An exporter whose server takes the connection and says nothing."""

    def __init__(self) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()

    def export(self, spans: object) -> SpanExportResult:
        self.asked.set()
        self.go_on.wait()
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.go_on.wait()


@pytest.mark.anyio
async def test_an_exporter_that_hangs_holds_up_neither_delivery_nor_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    stuck = Stuck()
    tracing = Tracing(lambda: stuck, "jetrelay-worker", flush=0.05)
    await tracing.start()
    try:
        for _ in range(50):  # many more than fit
            tracing(answered())
        assert stuck.asked.wait(30)
        await tracing.stop()
        assert not stuck.go_on.is_set()
        assert (0.05,) in [record.args for record in caplog.records]
        tracing(answered())  # after the end: nothing
    finally:
        stuck.go_on.set()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("given", "name"), [(None, "jetrelay-worker"), ("relay of the shop", "relay of the shop")]
)
async def test_what_is_left_is_sent_at_the_end_under_the_name_of_the_service(
    monkeypatch: pytest.MonkeyPatch, given: str | None, name: str
) -> None:
    if given is not None:
        monkeypatch.setenv("OTEL_SERVICE_NAME", given)
    memory = InMemorySpanExporter()
    tracing = Tracing(lambda: memory, "jetrelay-worker", flush=30)
    tracing(answered())  # before the start: nothing
    await tracing.start()
    tracing(answered())
    await tracing.stop()
    [span] = memory.get_finished_spans()
    assert span.resource.attributes["service.name"] == name


@pytest.mark.anyio
async def test_an_exporter_that_cannot_be_made_is_told_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> SpanExporter:
        raise ValueError("no such endpoint")

    tracing = Tracing(broken, "jetrelay-worker", flush=30)
    await tracing.start()
    tracing(answered())
    await tracing.stop()
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_exporters_are_found_by_their_name_or_as_a_function() -> None:
    assert exporter("console") is ConsoleSpanExporter
    assert exporter("opentelemetry.sdk.trace.export:ConsoleSpanExporter") is ConsoleSpanExporter


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("carrier_pigeon", "no exporter 'carrier_pigeon' is installed; there are: console"),
        ("relay.domain:pigeon", "relay.domain:pigeon cannot be imported"),
        ("pigeons:pigeon", "pigeons:pigeon cannot be imported"),
    ],
)
def test_an_exporter_that_is_not_there_is_named_with_those_that_are(name: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        fleet_tracing(Settings(tracing=TracingSettings(exporter=name)), "worker")
    assert says in error.value.message
    assert error.value.field == "tracing.exporter"


def test_without_the_extra_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("relay.telemetry.spans")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtraError, match=r"jetrelay\[otel\]"):
        instrument()
    with pytest.raises(MissingExtraError):
        fleet_tracing(Settings(tracing=TracingSettings(exporter="console")), "worker")
    assert fleet_tracing(Settings(), "worker") is None


def test_a_batch_may_have_as_many_links_as_it_has_events() -> None:
    assert SpanLimits(max_links=SpanLimits.UNSET).max_links is None
