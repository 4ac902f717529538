"""Switches OpenTelemetry on: `instrument` for your service, ``[tracing]`` in relay.toml for the fleet.

Until then nothing of OpenTelemetry is imported. It needs the extra ``jetrelay[otel]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from relay.bus.context import record_spans
from relay.domain.errors import MissingExtraError

if TYPE_CHECKING:
    from relay.settings import Settings
    from relay.telemetry.spans.provider import Tracing
    from relay.telemetry.spans.recorder import TracerProvider

__all__ = ["instrument", "uninstrument"]


def instrument(tracer_provider: TracerProvider | None = None) -> None:
    """Record a span for each event or task that this process creates, below the current span.

    The event or task carries it, so that its handler continues the trace. Call it once, when your service starts.
    ``tracer_provider``: that of your service; by default the global one. Processes of the fleet do this without a
    call. Raises MissingExtraError.
    """
    with _extra():
        from relay.telemetry.spans import recorder  # noqa: PLC0415 - optional
    record_spans(recorder.recorded_by(tracer_provider))


def uninstrument() -> None:
    """Stop recording spans, for tests."""
    record_spans(None)


def fleet_tracing(settings: Settings, role: str) -> Tracing | None:
    """The spans of a process of the fleet; None if no exporter is configured. Start and stop it with the process.

    Raises MissingExtraError, and ConfigurationError for an exporter that is not there.
    """
    if settings.tracing.exporter is None:
        return None
    with _extra():
        from relay.telemetry.spans import provider  # noqa: PLC0415 - optional
    make = provider.exporter(settings.tracing.exporter)
    return provider.Tracing(make, f"jetrelay-{role}", settings.tracing.flush.total_seconds())


@contextmanager
def _extra() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise MissingExtraError(
            "spans are switched on and OpenTelemetry is not installed", hint="pip install 'jetrelay[otel]'"
        ) from None
