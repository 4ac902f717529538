"""What a chaos run deploys: contexts, subscriptions, and the links from each role to the servers.

One context produces. Another one consumes, with a subscription for each type of event (`history.Source`).
Back-offs are short, so that a run of minutes has many retries. There are many attempts, so that no outage makes a
dead letter.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from chaos.history import ORDERED, Source
from relay.devstack.ports import LOOPBACK

PRODUCING: Final = "shop"
CONSUMING: Final = "sea"
#: The role of workers and schedulers. The superuser owns the tables.
FLEET: Final = "fleet"
#: A role that may only INSERT events and tasks. It writes what it likes.
STRANGER: Final = "stranger"
#: The database of the handler service.
CASES: Final = "cases"
DATABASES: Final = (PRODUCING, CONSUMING, CASES)
STREAM: Final = "SHOP_EVENTS"
#: The stream of dead letters, and a subscription on it that can read none of them: each letter dies once more.
LETTERS: Final = "SEA_DLQ"
LETTER_READER: Final = "dead_letters"
#: The revisions of a made-up next release. The databases are upgraded to them during a run.
NEXT_RELEASE: Final = Path(__file__).with_name("next_release")
#: The archive of both, beside the configuration.
COLD: Final = "cold"
#: With the back-off below these attempts last more than a minute; every fault is healed within that time.
MAX_ATTEMPTS: Final = 60

_PYTHON: Final = (sys.executable, "-m")
SCHEDULER_COMMAND: Final = (*_PYTHON, "scheduler")
#: How long a worker may finish its work after SIGTERM; the supervisor kills it only after that.
_PATIENCE_MS: Final = "8000"
#: A handler's time-out. The slow one's is longer than a lease, so that a lease can be lost during a call.
CALL_SECONDS: Final = {Source.HTTP: 3.0, Source.PYTHON: 3.0, Source.ORDERED: 3.0, Source.SLOW: 20.0}
#: The most messages that are delivered and not acknowledged. More than the service's may fail at once.
WINDOW: Final = {Source.HTTP: 50, Source.PYTHON: 200, Source.ORDERED: 200, Source.SLOW: 200}
#: How long a claim outlives its worker.
LEASE_SECONDS: Final = 8.0
#: The back-off of a message after its first failure, and at most, in seconds.
BACKOFF: Final = (0.2, 1.0)

#: Each link is "role-server": the connections that processes of one role make to one server.
LINKS: Final = (
    "worker-postgres",
    "worker-nats",
    "worker-valkey",
    "worker-service",
    "scheduler-postgres",
    "scheduler-nats",
    "scheduler-valkey",
    "service-postgres",
    "producer-postgres",
)

#: The subscriptions beside those of the sources, see `chaos.readers`.
AUDIT: Final = "audit"
TWIN: Final = "twin"
BESIDE: Final = (AUDIT, TWIN)
TWIN_STREAM: Final = f"{CONSUMING.upper()}_EVENTS"

_HANDLER: Final = "python:chaos.handlers"
_HANDLER_BESIDE: Final = "python:chaos.readers"
#: Nothing that they cannot handle comes to them, so no outage may end a message.
_WITHOUT_END: Final = 1_000_000

_CONTEXTS: Final = f"""\
[health]
stalled_after = "10s"

[contexts.{PRODUCING}]
[contexts.{PRODUCING}.stream]
name = "{STREAM}"
subjects = ["{PRODUCING}.event.>"]
max_age = "3h"
[contexts.{PRODUCING}.archive]
after = "6h"
directory = "COLD"
ALERTS
[contexts.{PRODUCING}.publish]
max_attempts = 3
backoff_initial = "200ms"
backoff_max = "2s"

[contexts.{CONSUMING}]
[contexts.{CONSUMING}.stream]
max_age = "3h"
[contexts.{CONSUMING}.archive]
after = "6h"
directory = "COLD"
ALERTS
"""
_ALERTS: Final = """
[contexts.{context}.alerts]
webhook = "{url}"
per_minute = 60
check_every = "5s"
"""
# max_deliver is too high to be reached: faults decide how often a message comes, and its handler decides its end.
_SUBSCRIPTION: Final = """
[contexts.{context}.subscriptions.{name}]
stream = "{stream}"
filter_subject = "{subject}"
settle = "{settle}"
handler = "{handler}"
handler_timeout = "{timeout:g}s"
ack_wait = "30s"
max_deliver = 1000
max_ack_pending = {window}
max_attempts = {max_attempts}
backoff_initial = "{initial:g}s"
backoff_max = "{most:g}s"
"""
_LETTER_READER: Final = f"""
[contexts.{CONSUMING}.dlq]
max_age = "3h"
[contexts.{CONSUMING}.subscriptions.{LETTER_READER}]
stream = "{LETTERS}"
filter_subject = "{CONSUMING}.dlq.>"
handler = "{_HANDLER}"
"""


def write_config(
    path: Path, service_url: str, alerts_url: str, max_attempts: int = MAX_ATTEMPTS, replicas: int = 1
) -> None:
    """Write the relay.toml of the run, and make the archive beside it; servers are named by the environment.

    ``replicas``: of each stream.
    """
    cold = path.with_name(COLD)
    cold.mkdir(exist_ok=True)
    contexts = _CONTEXTS.replace('"COLD"', json.dumps(str(cold)))
    for context in (PRODUCING, CONSUMING):
        contexts = contexts.replace("ALERTS\n", _ALERTS.format(context=context, url=alerts_url), 1)
    contexts = contexts.replace('max_age = "3h"', f'max_age = "3h"\nreplicas = {replicas}')
    subscriptions = "".join(_subscription(source, service_url, max_attempts) for source in Source)
    path.write_text(contexts + subscriptions + _beside() + _LETTER_READER)


def _beside() -> str:
    source = Source.PYTHON.value
    places = {
        AUDIT: (STREAM, f"{PRODUCING}.event.{source}.>"),
        TWIN: (TWIN_STREAM, f"{CONSUMING}.event.{source}.>"),
    }
    return "".join(
        _SUBSCRIPTION.format(
            context=CONSUMING,
            name=name,
            stream=stream,
            subject=subject,
            settle="inbox",
            handler=_HANDLER_BESIDE,
            timeout=CALL_SECONDS[Source.PYTHON],
            window=WINDOW[Source.PYTHON],
            initial=BACKOFF[0],
            most=BACKOFF[1],
            max_attempts=_WITHOUT_END,
        )
        for name, (stream, subject) in places.items()
    )


def _subscription(source: Source, service_url: str, max_attempts: int) -> str:
    served = source in {Source.HTTP, Source.SLOW}
    initial, most = BACKOFF
    text = _SUBSCRIPTION.format(
        context=CONSUMING,
        name=source.value,
        stream=STREAM,
        timeout=CALL_SECONDS[source],
        window=WINDOW[source],
        initial=initial,
        most=most,
        max_attempts=max_attempts,
        subject=f"{PRODUCING}.event.{source.value}.>",
        settle="handler" if served else "inbox",
        handler=service_url if served else _HANDLER,
    )
    if source in ORDERED:
        text += 'order = "key"\nfailed_head = "skip"\n'
    if source is Source.HTTP:  # one of the two subscriptions with a service
        text += 'on_failure = "nak"\n'
    return text


def database_url(server: str, database: str) -> str:
    """Return the address of a database; ``server``: of any database at the server, or at a link to it."""
    return urlsplit(server)._replace(path=f"/{database}").geturl()


def service_url(port: int) -> str:
    """Return where the handler service takes messages."""
    return f"http://{LOOPBACK}:{port}/handle"


def variables(config: Path, servers: Mapping[str, str]) -> dict[str, str]:
    """Return what the settings read; ``servers``: addresses of postgres, nats and valkey, or of links to them."""
    databases = {
        f"RELAY_CONTEXTS__{context.upper()}__DATABASE_URL": database_url(servers["postgres"], context)
        for context in (PRODUCING, CONSUMING)
    }
    return {
        **databases,
        "RELAY_CONFIG": str(config),
        "NATS_URL": servers["nats"],
        "REDIS_URL": servers["valkey"],
    }


def alerts_url(port: int) -> str:
    """Return where the handler service takes alerts."""
    return f"http://{LOOPBACK}:{port}/alerts"


def as_role(server: str, role: str) -> str:
    """Return an address of the PostgreSQL server, or of a database, for another role: all have one password."""
    parts = urlsplit(server)
    return parts._replace(netloc=f"{role}:{parts.password}@{parts.hostname}:{parts.port}").geturl()


def worker_command(threads: int) -> tuple[str, ...]:
    """Return the command of a worker."""
    size = ("--processes", "1", "--threads", str(threads))
    return (*_PYTHON, "dramatiq", "relay.actors", *size, "--worker-shutdown-timeout", _PATIENCE_MS)


def service_command(postgres: str, port: int, history: Path, seed: int) -> tuple[str, ...]:
    """Return the command of the handler service; it answers ``/handle``, and ``/healthz`` with 200.

    ``postgres``: the address of the server, whose password goes into the environment: anybody can read a command.
    """
    parts = urlsplit(database_url(postgres, CASES))
    database = parts._replace(netloc=f"{parts.username}@{parts.hostname}:{parts.port}").geturl()
    options = {"database": database, "port": port, "directory": history, "seed": seed}
    return (
        *_PYTHON,
        "chaos.service",
        *(str(it) for name, value in options.items() for it in (f"--{name}", value)),
    )
