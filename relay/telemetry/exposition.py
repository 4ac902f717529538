"""Serves metrics to Prometheus: HTTP in a thread, and the files in which the workers of one command count."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app, values
from prometheus_client.multiprocess import MultiProcessCollector

from relay.domain.facts import FactSink
from relay.telemetry.gauges import BacklogGauges, UsageGauges
from relay.telemetry.metrics import Labels, MetricFacts
from relay.telemetry.probes import Probes
from relay.telemetry.scale import Ask, Scale

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

#: The initial size of a file, in bytes. If a file had to grow on a full disk, the process writing it would die.
_INITIAL_BYTES: Final = 1 << 20
_KINDS: Final = ("counter", "histogram")
#: A client that sends nothing for so long is cut off, in seconds.
_CLIENT_TIMEOUT_S: Final = 10

#: Answers a GET request: its query string, to a status and a body.
Answer = Callable[[str], tuple[HTTPStatus, Any]]

_log = logging.getLogger("relay.metrics")


def listen(labels: Labels, address: str, probes: Probes) -> Sequence[FactSink]:
    """Count in this process, and answer at ``address``."""
    registry = CollectorRegistry()
    listeners = [MetricFacts(labels, registry)]
    _answer(_serving(make_wsgi_app(registry), **_paths(probes)), address)
    return listeners


def listen_to_samples(
    labels: Labels, address: str, interval: float, ask: Ask, probes: Probes
) -> Sequence[FactSink]:
    """As `listen`, and show backlogs and lag, which are sampled every ``interval`` seconds; answer GET /scale.

    ``ask``: starts to read the lag of a context.
    """
    registry = CollectorRegistry()
    subscriptions = {context: values["subscription"] for context, values in labels.items()}
    gauges, scale = BacklogGauges(subscriptions, interval), Scale(subscriptions, interval, ask)
    registry.register(gauges)
    listeners: list[FactSink] = [MetricFacts(labels, registry), gauges, scale]
    _answer(_serving(make_wsgi_app(registry), scale=scale.answer, **_paths(probes)), address)
    return listeners


def listen_in_files(labels: Labels, directory: Path) -> MetricFacts:
    """Count in ``directory``, which the environment must name, together with other processes. Raises OSError."""
    _make(directory)
    for kind in _KINDS:
        with suppress(FileExistsError), (directory / f"{kind}_{os.getpid()}.db").open("xb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(bytes(_INITIAL_BYTES))
    # prometheus-client chooses this class at its import, and another module may have imported it before.
    values.ValueClass = values.get_value_class()
    return MetricFacts(labels, CollectorRegistry())


def _make(directory: Path) -> None:
    """Create a directory for us alone, and those above it that are missing: Python gives them to everybody."""
    for it in reversed([it for it in (directory, *directory.parents) if not it.exists()]):
        it.mkdir(mode=0o700, exist_ok=True)


def answer_for(directory: Path, address: str, probes: Probes) -> None:
    """Answer for all processes that count in ``directory``, including those that have ended."""
    _make(directory)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(directory))
    registry.register(UsageGauges(directory))
    _answer(_serving(make_wsgi_app(registry), **_paths(probes)), address)


def forget_ended(directory: Path) -> None:
    """Remove the files in ``directory`` of commands that no longer run."""
    for found in directory.glob("*-*"):
        number = found.name.rpartition("-")[2]
        if number.isdecimal() and not _runs(int(number)):
            shutil.rmtree(found, ignore_errors=True)


def _paths(probes: Probes) -> dict[str, Answer]:
    return {"healthz": probes.healthz, "readyz": probes.readyz}


def _serving(metrics: WSGIApplication, **paths: Answer) -> WSGIApplication:
    """Answer GET requests for these paths with JSON, beside the metrics."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        found = paths.get(environ["PATH_INFO"].removeprefix("/"))
        if found is None or environ["REQUEST_METHOD"] != "GET":
            return metrics(environ, start_response)
        status, body = found(environ.get("QUERY_STRING", ""))
        headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
        start_response(f"{status.value} {status.phrase}", headers)
        return [json.dumps(body).encode()]

    return answer


class _ThreadedServer(ThreadingMixIn, WSGIServer):
    """A thread for each request, which does not keep the process alive."""

    daemon_threads = True


class _ServerOn6(_ThreadedServer):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    timeout = _CLIENT_TIMEOUT_S

    def log_message(self, *_: Any) -> None:
        """Log nothing: a scraper comes every few seconds."""


def _answer(application: WSGIApplication, address: str) -> None:
    Thread(target=_bind, args=(application, address), name="metrics", daemon=True).start()


def _bind(application: WSGIApplication, address: str) -> None:
    """Begin to answer. If the address is in use, try again until it is free; work continues meanwhile."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    warned = False
    while True:
        try:
            server = make_server(
                host, int(port), application, _ServerOn6 if ":" in host else _ThreadedServer, _Quiet
            )
        except OSError as error:
            if not warned:
                _log.warning("metrics cannot be read at %s yet: %s", address, error)
            warned = True
            time.sleep(1)
        else:
            _log.info("metrics can be read at http://%s/metrics", address)
            server.serve_forever()


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
