"""The fleets that are measured, as their relay.toml."""

from __future__ import annotations

from typing import Final

from benchmarks.fleet import Layout

#: The module of the Python handlers and the task.
HANDLERS: Final = "benchmarks.handlers"
#: The default of 50 is for handlers that are worth waiting for; a no-op handler never sees 50 of 20,000 waiting.
_PENDING: Final = 1_000
_MODULES: Final = {"RELAY_ACTOR_MODULES": f"tasks.actors,consumer.actors,{HANDLERS}"}

_CONTEXT: Final = """
[contexts.{name}]
[contexts.{name}.stream]
name = "{stream}"
subjects = ["{name}.event.>"]
max_bytes = "{size}"
"""
_SUBSCRIPTION: Final = """
[contexts.{context}.subscriptions.{name}]
stream = "{stream}"
durable = "{context}__{name}"
filter_subject = "{subject}"
max_ack_pending = {pending}
handler = "{handler}"
{more}
"""


def _context(name: str, size: str = "40GB") -> str:
    return _CONTEXT.format(name=name, stream=f"{name.upper()}_EVENTS", size=size)


def _subscription(context: str, name: str, source: str, handler: str, more: str = "") -> str:
    return _SUBSCRIPTION.format(
        context=context,
        name=name,
        stream=f"{source.upper()}_EVENTS",
        subject=f"{source}.event.{name}.v1",
        pending=_PENDING,
        handler=handler,
        more=more,
    )


#: The context that has little to publish, beside busy ones.
QUIET: Final = "quiet"
#: One context that only publishes.
PUBLISHING: Final = Layout("publishing", _context("bench"))
#: Tasks go to Redis and nobody runs them.
DELIVERING: Final = Layout(
    "delivering",
    _context("tasked"),
    {**_MODULES, "RELAY_TASK_WINDOW": "100000"},
    queues=("relay-upkeep",),
)
#: Tasks are run.
WORKING: Final = Layout("working", _context("tasked"), _MODULES)
#: Three contexts of which two listen, as they are by default.
IDLE: Final = Layout(
    "idle",
    _context("first")
    + _context("second")
    + _subscription("second", "made", "first", f"python:{HANDLERS}")
    + _context("third")
    + _subscription("third", "made", "second", f"python:{HANDLERS}"),
    _MODULES,
)


def consuming(service: str) -> Layout:
    """One context that publishes and one that listens, with a subscription for each kind of handler.

    ``service``: the URL of the HTTP handler.
    """
    python = f"python:{HANDLERS}"
    parts = [
        _context("source"),
        _context("sink"),
        _subscription("sink", "each", "source", python),
        _subscription("sink", "writing", "source", python),
        _subscription("sink", "http", "source", service),
        _subscription("sink", "chunked", "source", python, "chunk = 50"),
    ]
    return Layout("consuming", "".join(parts), _MODULES)


def busy(many: int) -> Layout:
    """Contexts that only publish: a quiet one, and others beside it."""
    names = [QUIET, *(f"busy{number}" for number in range(many))]
    return Layout(f"busy-{many}", "".join(map(_context, names)))


def crowd(contexts: int, subscriptions: int) -> Layout:
    """Contexts of which each listens to the next one, with so many subscriptions. Nobody has anything to do."""
    names = [f"c{number}" for number in range(contexts)]
    # A stream reserves its size on the disk, and a server has not room for so many large ones.
    parts = [_context(name, "1GB") for name in names]
    for number, name in enumerate(names):
        source = names[(number + 1) % contexts]
        parts += [
            _subscription(name, f"s{number}", source, "http://127.0.0.1:9/handle")
            for number in range(subscriptions)
        ]
    return Layout(f"crowd-{contexts}-{subscriptions}", "".join(parts), _MODULES)
