"""Sends the spans of a process, in a thread of the SDK. Its queue is bounded, and drops spans if it is full.

OpenTelemetry's own variables say where to send spans, how often and how many (``OTEL_EXPORTER_OTLP_ENDPOINT``,
``OTEL_BSP_…``, ``OTEL_TRACES_SAMPLER``, ``OTEL_SERVICE_NAME``). The SDK reads them itself.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import threading
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from relay.bus.context import record_spans
from relay.domain.errors import ConfigurationError
from relay.domain.facts import Fact
from relay.telemetry.spans import names
from relay.telemetry.spans.listener import GivenIds, SpanFacts
from relay.telemetry.spans.recorder import OpenTelemetrySpans

_GROUP: Final = "opentelemetry_traces_exporter"
_UNKNOWN: Final = "unknown_service"

_log = logging.getLogger("relay.tracing")


class Tracing:
    """The spans of one process of the fleet. `start` it in that process itself: threads do not survive a fork.

    ``make``: makes the exporter. ``service``: the name of the process, unless ``OTEL_SERVICE_NAME`` has one.
    ``flush``: for how long, in seconds, `stop` waits for the exporter.
    """

    def __init__(self, make: Callable[[], SpanExporter], service: str, flush: float) -> None:
        self._make = make
        self._service = service
        self._flush = flush
        self._provider: TracerProvider | None = None
        self._facts: SpanFacts | None = None

    def __call__(self, fact: Fact, /) -> None:
        """Make the span of a fact, between `start` and `stop`."""
        if self._facts is not None:
            self._facts(fact)

    async def start(self) -> None:
        """Begin to record. An exporter that cannot be made is logged, and nothing is recorded."""
        try:
            exporter = self._make()
        except Exception:
            _log.exception("the exporter of spans cannot be made; no spans are sent")
            return
        # A batch has a link for each event, and the number of its events is limited already.
        self._provider = TracerProvider(
            id_generator=GivenIds(),
            resource=_resource(self._service),
            span_limits=SpanLimits(max_links=SpanLimits.UNSET),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        tracer = self._provider.get_tracer(names.SCOPE)
        self._facts = SpanFacts(tracer)
        record_spans(OpenTelemetrySpans(tracer))
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            trace.set_tracer_provider(self._provider)  # the spans of handlers, if the application has no other

    async def stop(self) -> None:
        """Send the spans that are left, for a limited time. If the exporter still hangs then, leave it."""
        if self._provider is None:
            return
        self._facts = None
        record_spans(None)
        # Not a thread of a pool: the process waits for such threads when it ends.
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        threading.Thread(target=_shut_down, args=(self._provider, loop, done), name="spans", daemon=True).start()
        try:
            async with asyncio.timeout(self._flush):
                await done.wait()
        except TimeoutError:
            _log.warning("the last spans were not sent within %g s", self._flush)


def _shut_down(provider: TracerProvider, loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> None:
    try:
        provider.shutdown()
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(done.set)


def exporter(name: str) -> Callable[[], SpanExporter]:
    """Return the maker of an exporter: an installed one, or ``module:function``. Raises ConfigurationError."""
    module, _, attribute = name.partition(":")
    if attribute:
        return _imported(module, attribute)
    found = entry_points(group=_GROUP)
    if name not in found.names:
        known = ", ".join(sorted(found.names)) or "none"
        raise ConfigurationError(
            f"no exporter {name!r} is installed; there are: {known}",
            field="tracing.exporter",
            hint="pip install opentelemetry-exporter-otlp-proto-http for otlp_proto_http; or name module:function",
        )
    made: Callable[[], SpanExporter] = found[name].load()
    return made


def _imported(module: str, attribute: str) -> Callable[[], SpanExporter]:
    try:
        made: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"{module}:{attribute} cannot be imported: {error}",
            field="tracing.exporter",
            hint="name a function without arguments that returns a SpanExporter",
        ) from error
    found: Callable[[], SpanExporter] = made
    return found


def _resource(service: str) -> Resource:
    found = Resource.create()
    if not str(found.attributes.get(names.SERVICE_NAME, _UNKNOWN)).startswith(_UNKNOWN):
        return found
    return found.merge(Resource({names.SERVICE_NAME: service}))
