"""The queries of operators, on one bus: the command line asks them, and so may a console.

    bus = queries(load_settings())
    found = await bus.ask_async(Diagnose(close=True))        # Some(Diagnosis(...))

Every answer is a value of the standard library's types, which `dataclasses.asdict` turns into JSON.
"""

from __future__ import annotations

from relay.bus import Query, QueryBus
from relay.domain.findings import Diagnosis, ProcessKind
from relay.ops.doctor.examining import Examination
from relay.settings import Settings


class Diagnose(Query[Diagnosis]):
    """Whether everything is as the relay needs it. ``process``: only what this kind of process needs.

    ``close``: with everything that the promises need, as `relay doctor` asks it; else as `relay health`.
    """

    process: ProcessKind | None = None
    close: bool = False


def queries(settings: Settings) -> QueryBus:
    """Return the bus that answers about the system that a configuration describes."""
    bus = QueryBus()

    @bus.handles(Diagnose)
    async def diagnose(query: Diagnose) -> Diagnosis:
        return await Examination(settings, close=query.close, process=query.process).run()

    return bus
