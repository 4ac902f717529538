"""``python -m relay.devstack.dashboard``: dramatiq-dashboard on the queues of the fleet.

It reads relay.toml and the environment as a worker does, so it shows the queues that a worker would serve.
dramatiq-dashboard 0.4.0 asks for ``dramatiq<2`` and ``redis<5``, but works with the releases of the fleet. Install
it without its requirements, in the environment of jetrelay; its templates need the extra ``ops``.
"""

from __future__ import annotations

import argparse
import importlib
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any, Final
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

from relay.credentials import redis_options
from relay.devstack.ports import LOOPBACK
from relay.domain.errors import MissingExtraError, RelayError
from relay.settings import load_settings

DEFAULT_PORT: Final = 8086
_OURS: Final = frozenset({"127.0.0.1", "localhost", "::1"})
#: The page of a job. Our ids hold a slash, which its own route does not take.
_JOB: Final = re.compile(
    r"^/queues/(?P<name>[^/]+)/(?P<current_tab>standard|delayed|failed)/(?P<message_id>.+)$", re.DOTALL
)
_Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Say nothing of each request."""


def application() -> _Application:
    """Return the WSGI application. Raises MissingExtraError, and ConfigurationError as a worker does."""
    try:
        import jinja2  # noqa: F401
        from dramatiq_dashboard import DashboardApp
    except ImportError as error:
        raise MissingExtraError(
            f"{error.name} is not installed",
            hint="pip install 'jetrelay[ops]' && pip install --no-deps dramatiq-dashboard==0.4.0",
        ) from error

    settings = load_settings()
    importlib.import_module("relay.actors")  # as the command `dramatiq` does; it declares all queues
    # A broker without our extensions: the user of the dashboard has no rights for them.
    client = redis.Redis.from_url(settings.redis_url.get_secret_value(), **redis_options(settings))
    broker = RedisBroker(client=client, namespace=settings.redis_namespace, middleware=[])
    for queue in dramatiq.get_broker().get_declared_queues():
        broker.declare_queue(queue)
    dashboard = DashboardApp(broker, "")
    dashboard._dispatch_table.insert(0, (_JOB, dashboard.job))

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if urlsplit(f"//{environ.get('HTTP_HOST', '')}").hostname not in _OURS:
            # A page in a browser here could have its own name resolved to this machine.
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"ask 127.0.0.1 or localhost\n"]

        def framed(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            return start_response(status, [*headers, ("X-Frame-Options", "DENY")], *more)

        page: Iterable[bytes] = dashboard(environ, framed)
        return page

    return answer


def main() -> None:
    """Serve dramatiq-dashboard on the Redis that relay.toml and the environment name, until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m relay.devstack.dashboard", description=main.__doc__)
    parser.add_argument("--host", default=LOOPBACK, help="the address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="the port (default: %(default)s)")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    warnings.simplefilter("ignore", DeprecationWarning)  # it uses datetime.utcfromtimestamp
    try:
        app = application()
    except RelayError as error:
        sys.exit(f"error {error}")
    with make_server(
        options.host, options.port, app, server_class=_ThreadingServer, handler_class=_Silent
    ) as server:
        sys.stdout.write(f"dramatiq-dashboard at http://{options.host}:{options.port}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main()
