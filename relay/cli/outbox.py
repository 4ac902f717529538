"""`relay outbox`: look at events, retry failed ones, replay published ones. The relay then publishes them."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any, Final

import typer

from relay.adapters.postgres.backlogs import PostgresBacklogReader
from relay.adapters.postgres.pool import Source
from relay.cli.options import Options, ask
from relay.cli.progress import bar
from relay.cli.rows import After, group_of
from relay.domain.operators import Outcome
from relay.ops.kinds import EVENTS
from relay.settings import ContextSettings

#: How often to check whether events are published, in seconds.
_LOOK_EVERY_S: Final = 0.2
_WAIT: Final[Options] = {
    "wait": (
        Annotated[bool, typer.Option("--wait", help="Wait until they are published. Ctrl-C only ends the wait.")],
        False,
    ),
}


def _after(options: dict[str, Any]) -> After | None:
    return _wait if options["wait"] else None


def _wait(context: ContextSettings, outcome: Outcome) -> None:
    """Wait until workers have published events, with a bar on a terminal."""

    async def watch(source: Source) -> None:
        reader, count = PostgresBacklogReader(source), len(outcome.done)
        with bar(f"{context.name}: events", "published") as progress:
            while waiting := await reader.still_waiting(outcome.done):
                progress(count - waiting, count)
                await asyncio.sleep(_LOOK_EVERY_S)

    try:
        ask(context.database, watch)
    except KeyboardInterrupt:
        print("workers still publish them as soon as they can", file=sys.stderr)
        raise typer.Exit(130) from None


app: Final = group_of(EVENTS, _WAIT, _after)
