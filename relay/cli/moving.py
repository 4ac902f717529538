"""The steps of `relay context open` and `compare`: a context runs in one database, the old one or its copy."""

from __future__ import annotations

from collections.abc import Sequence

from relay.adapters.postgres.closing import PostgresClosing, differences
from relay.adapters.postgres.pool import connected
from relay.cli.progress import bar
from relay.domain.errors import NotMovable
from relay.domain.operators import Operator
from relay.settings import ContextSettings
from relay.settings.urls import with_search_path


async def open_moved(found: ContextSettings, old: str | None, by: Operator) -> bool:
    """Open the tables of a context, those of a copy only if ``old`` are closed and the same; False: they are open.

    The old ones are left for ever before the copy opens. So an interruption leaves none open, and the command is
    given again. Raises NotMovable, DatabaseUnreachable and ConfigurationError.
    """
    async with connected(found.database, "operator") as source:
        ours = PostgresClosing(source)
        state = await ours.state()
        if not state.closed:
            return False
        if state.moved_to is not None:
            raise NotMovable("the context has moved to another database", hint="name that one in relay.toml")
        if old is None:
            if not state.here:
                raise NotMovable(
                    "these tables are a copy: the old ones may be open", hint="name the old ones: --from"
                )
            await ours.open(by, {})
            return True
        async with connected(other(found, old), "operator") as former:
            theirs = PostgresClosing(former)
            await _check_left(theirs, state.identity)
            if lines := await compared(found, other(found, old), found.database):
                raise NotMovable(
                    f"the copy differs: {lines[0]}", hint="relay context compare --to OTHER lists all; copy again"
                )
            await theirs.leave(state.identity)
            await ours.open(by, await theirs.numbers())
    return True


async def _check_left(theirs: PostgresClosing, identity: str) -> None:
    state = await theirs.state()
    if not state.closed:
        raise NotMovable("the old tables are open: both would run", hint="relay context close, on the old ones")
    if state.moved_to not in (None, identity):
        raise NotMovable("the old tables have moved to another copy", hint="move that one, or drop this one")


async def compared(found: ContextSettings, old: str, new: str) -> Sequence[str]:
    """What the tables of a context do not have in common in two databases. Raises DatabaseUnreachable."""
    async with connected(old, "operator") as theirs, connected(new, "operator") as ours:
        with bar(f"{found.name}: tables", "compared") as progress:
            return await differences(PostgresClosing(theirs), PostgresClosing(ours), progress)


def other(found: ContextSettings, url: str) -> str:
    """The address of another database, whose tables are in the same schema."""
    return with_search_path(url, *(() if found.own_schema is None else (found.own_schema,)))
