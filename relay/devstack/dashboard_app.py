"""Serves dramatiq-dashboard. Runs in an environment of its own, so it imports nothing of jetrelay.

dramatiq-dashboard 0.4.0 wants older releases of dramatiq and redis-py than a fleet has, and works with these too.
The environment says where: REDIS_URL, DASHBOARD_NAMESPACE, DASHBOARD_QUEUES (names with spaces between),
DASHBOARD_HOST, DASHBOARD_PORT, and DASHBOARD_ACCESS, JSON of further arguments of the client.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any, Final
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
#: The page of a job. Our ids hold the name of their share, and a slash in it.
_JOB: Final = re.compile(
    r"^/queues/(?P<name>[^/]+)/(?P<current_tab>standard|delayed|failed)/(?P<message_id>.+)$", re.DOTALL
)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Say nothing of each request."""


def application(url: str, namespace: str, queues: Iterable[str], **access: Any) -> Callable[..., Iterable[bytes]]:
    """Return the WSGI application, over the queues of a namespace. ``access`` goes to the client of Redis."""
    import redis
    from dramatiq.brokers.redis import RedisBroker
    from dramatiq_dashboard import DashboardApp

    client = redis.Redis.from_url(url, **access)
    broker = RedisBroker(client=client, namespace=namespace, middleware=[])
    for queue in queues:
        broker.declare_queue(queue)
    dashboard = DashboardApp(broker, "")
    dashboard._dispatch_table.insert(0, (_JOB, dashboard.job))

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if urlsplit(f"//{environ.get('HTTP_HOST', '')}").hostname not in _LOOPBACK:
            # A page in a browser here could have its own name resolved to this machine.
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"ask 127.0.0.1 or localhost\n"]

        def framed(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            return start_response(status, [*headers, ("X-Frame-Options", "DENY")], *more)

        found: Iterable[bytes] = dashboard(environ, framed)
        return found

    return answer


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    take = os.environ
    app = application(
        take["REDIS_URL"],
        take["DASHBOARD_NAMESPACE"],
        take["DASHBOARD_QUEUES"].split(),
        **json.loads(take.get("DASHBOARD_ACCESS", "{}")),
    )
    host, port = take.get("DASHBOARD_HOST", "127.0.0.1"), int(take.get("DASHBOARD_PORT", "8086"))
    with make_server(host, port, app, server_class=_Server, handler_class=_Silent) as server:
        sys.stdout.write(f"dramatiq-dashboard at http://{host}:{port}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main()
