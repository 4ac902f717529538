"""The queries of operators, on one bus, for the command line and consoles.

    bus = queries(load_settings())
    found = await bus.ask_async(Diagnose(close=True))        # Some(Diagnosis(...))

Every answer is a value of the standard library's types, which `dataclasses.asdict` turns into JSON.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any

from pydantic import Field

from relay.adapters.postgres.pool import Source, connected
from relay.bus import Query, QueryBus
from relay.domain.findings import Diagnosis, ProcessKind
from relay.domain.life import Life
from relay.ops.doctor.examining import Examination
from relay.ops.explain.gathering import Progress, Sources, gather
from relay.ops.explain.tree import steps
from relay.ops.requests import ASKED_S
from relay.settings import ContextSettings, Settings


class Diagnose(Query[Diagnosis]):
    """Whether everything meets the relay's conditions. ``process``: only those of this kind of process.

    ``close``: with everything that the promises need, as `relay doctor` asks it; else as `relay health`.
    """

    process: ProcessKind | None = None
    close: bool = False


class Explain(Query[Life]):
    """What happened to a message, by any id of it or of its chain; nothing if no context knows it.

    ``id``: of an event, message, task, incident, operation or cause, or ``stream:sequence``. ``archive``: whether
    to search the archives too, which may take long for an id without a time in it.
    """

    id: Annotated[str, Field(min_length=1, max_length=300)]
    archive: bool = True


def _connected(context: ContextSettings) -> AbstractAsyncContextManager[Source]:
    return connected(context.database, "operator", ASKED_S)


def queries(
    settings: Settings,
    progress: Progress = lambda _done, _total: None,
    sources: Sources = _connected,
    patience: float | None = None,
) -> QueryBus:
    """Return the bus that answers about the system that a configuration describes.

    ``progress`` is told how much of a long answer is done. ``sources`` lend the databases in which a life is
    looked for; if not given, each look opens a connection. ``patience``: how long archives are read for it, in
    seconds; None without a limit.
    """
    bus = QueryBus()

    @bus.handles(Diagnose)
    async def diagnose(query: Diagnose) -> Diagnosis:
        return await Examination(settings, close=query.close, process=query.process).run()

    @bus.handles(Explain)
    async def explain(query: Explain) -> Life | None:
        how: Any = {"archive": query.archive, "progress": progress, "patience": patience}
        found = await gather(settings.contexts, sources, query.id, **how)
        if found.empty and not found.unread:
            return None
        return Life(asked=query.id, steps=steps(found), unread=found.unread, cut=found.cut)

    return bus
