"""A process whose spans end up in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from relay.telemetry.spans.listener import GivenIds, SpanFacts
from relay.tracing import instrument, uninstrument


@dataclass
class Recorded:
    """``listener``: what makes spans of facts. ``tracer``: that of the application."""

    exporter: InMemorySpanExporter
    listener: SpanFacts
    tracer: Tracer

    def spans(self, beginning: str = "") -> list[ReadableSpan]:
        """The spans whose names begin so, in the order in which they ended."""
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(beginning)]

    def one(self, beginning: str) -> ReadableSpan:
        [span] = self.spans(beginning)
        return span

    def tell(self, facts: list) -> None:
        """Pass on facts that were kept, and forget them."""
        for fact in facts:
            self.listener(fact)
        facts.clear()


def id_of(span: ReadableSpan) -> int:
    return span.get_span_context().span_id


def trace_of(span: ReadableSpan) -> int:
    return span.get_span_context().trace_id


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


@contextmanager
def recording() -> Iterator[Recorded]:
    provider, exporter = TracerProvider(id_generator=GivenIds(), shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrument(provider)
    try:
        tracer = provider.get_tracer("tests")
        yield Recorded(exporter, SpanFacts(tracer), tracer)
    finally:
        uninstrument()
        provider.shutdown()
