"""Where Prometheus reads."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from pydantic import Field

from relay.settings.section import Section
from relay.settings.values import Duration, ListenAddress


class MetricsSettings(Section):
    """Each kind of process listens at an address of its own: a port of 127.0.0.1, or ``host:port``.

    A process without an address counts nothing; without that of the scheduler nobody samples backlogs, which
    otherwise happens every ``interval``. ``directory``: where the worker processes of one ``dramatiq`` command
    keep their counts, to be added up. It is made if missing, and belongs to one host, or one container.
    """

    scheduler: ListenAddress | None = None
    worker: ListenAddress | None = None
    tasks: ListenAddress | None = None
    directory: Path | None = None
    interval: Duration = Field(default=timedelta(seconds=15), ge=timedelta(seconds=1), le=timedelta(minutes=5))
