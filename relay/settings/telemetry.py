"""The tables ``metrics``, ``health`` and ``tracing``: how processes are watched from outside."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from pydantic import Field

from relay.settings.section import Section
from relay.settings.values import Duration, ListenAddress


class MetricsSettings(Section):
    """Each kind of process listens at its own address: a port of 127.0.0.1, or ``host:port``.

    A process without an address counts nothing. The scheduler samples the backlogs every ``interval``, but only if
    it has an address. ``directory``: where the worker processes of one ``dramatiq`` command keep their counts, to
    be added up. It is created if missing. It must belong to one host or one container.
    """

    scheduler: ListenAddress | None = None
    worker: ListenAddress | None = None
    tasks: ListenAddress | None = None
    directory: Path | None = None
    interval: Duration = Field(default=timedelta(seconds=15), ge=timedelta(seconds=1), le=timedelta(minutes=5))


class HealthSettings(Section):
    """When `relay health` says that something is wrong with what waits.

    ``stalled_after``: something is due and nothing has moved for so long. ``dead_letters``: so many open ones of a
    subscription are an error, fewer a warning. ``dead_letters_age``: one that is open for so long is an error too.
    """

    stalled_after: Duration = Field(default=timedelta(seconds=60), ge=timedelta(seconds=2), le=timedelta(hours=1))
    dead_letters: int = Field(default=100, ge=1)
    dead_letters_age: Duration = timedelta(days=1)


class TracingSettings(Section):
    """Where workers and ``python -m tasks`` send spans. Without ``exporter`` there are none.

    ``exporter``: the name of an installed exporter of OpenTelemetry, such as ``otlp_proto_http``, or a function of
    yours that returns one, as ``module:function``. Its own variables, ``OTEL_…``, say where and how often.
    ``flush``: how long a process that ends may take to send its last spans.
    """

    exporter: str | None = Field(default=None, pattern=r"^[A-Za-z_][\w.-]*(:[A-Za-z_]\w*)?$")
    flush: Duration = Field(default=timedelta(seconds=2), le=timedelta(seconds=30))
