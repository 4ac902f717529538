"""Serves metrics to Prometheus: HTTP in a thread, and the files in which the workers of one command count."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server, values
from prometheus_client.multiprocess import MultiProcessCollector

from relay.domain.facts import FactSink
from relay.telemetry.backlogs import BacklogGauges
from relay.telemetry.metrics import Known, MetricFacts

#: The initial size of a file, in bytes. If a file had to grow on a full disk, the process writing it would die.
_INITIAL_BYTES: Final = 1 << 20
_KINDS: Final = ("counter", "histogram")

_log = logging.getLogger("relay.metrics")


def listen(known: Known, address: str, interval: float | None = None) -> Sequence[FactSink]:
    """Count in this process, and answer at ``address``. ``interval``: the seconds between samples of backlogs."""
    registry = CollectorRegistry()
    listeners: list[FactSink] = [MetricFacts(known, registry)]
    if interval is not None:
        gauges = BacklogGauges({context: labels["subscription"] for context, labels in known.items()}, interval)
        registry.register(gauges)
        listeners.append(gauges)
    _answer(registry, address)
    return listeners


def listen_in_files(known: Known, directory: Path) -> MetricFacts:
    """Count in ``directory``, which the environment must name, together with other processes. Raises OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for kind in _KINDS:
        with suppress(FileExistsError):
            (directory / f"{kind}_{os.getpid()}.db").open("xb").write(bytes(_INITIAL_BYTES))
    # prometheus-client chooses this class at its import, and another module may have imported it before.
    values.ValueClass = values.get_value_class()
    return MetricFacts(known, CollectorRegistry())


def answer_for(directory: Path, address: str) -> None:
    """Answer for all processes that count in ``directory``, including those that have ended."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(directory))
    _answer(registry, address)


def forget_ended(directory: Path) -> None:
    """Remove the files in ``directory`` of commands that no longer run."""
    for found in directory.glob("*-*"):
        number = found.name.rpartition("-")[2]
        if number.isdecimal() and not _runs(int(number)):
            shutil.rmtree(found, ignore_errors=True)


def _answer(registry: CollectorRegistry, address: str) -> None:
    Thread(target=_bind, args=(registry, address), name="metrics", daemon=True).start()


def _bind(registry: CollectorRegistry, address: str) -> None:
    """Begin to answer. If the address is in use, try again until it is free; work continues meanwhile."""
    host, _, port = address.rpartition(":")
    told = False
    while True:
        try:
            start_http_server(int(port), addr=host.strip("[]"), registry=registry)
        except OSError as error:
            if not told:
                _log.warning("metrics cannot be read at %s yet: %s", address, error)
            told = True
            time.sleep(1)
        else:
            _log.info("metrics can be read at http://%s/metrics", address)
            return


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
