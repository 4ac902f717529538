"""`relay personal`: the keys of personal values."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import typer

from relay.adapters.postgres.subject_keys import PostgresSubjectKeys
from relay.cli.options import ACTING, ContextOption, JsonOption, connecting, operator, print_json, with_options
from relay.domain.errors import ConfigurationError, of_context
from relay.domain.operators import Operator
from relay.domain.personal import Masters
from relay.settings import ContextSettings, load_settings

app = typer.Typer(help="The keys of personal values.", no_args_is_help=True)


@app.callback()
def personal() -> None:
    """Hold the commands of this group."""


@app.command()
@with_options({name: ACTING[name] for name in ("note", "actor")})
def rotate(
    *,
    context: ContextOption = None,
    as_json: JsonOption = False,
    options: dict[str, Any],
) -> None:
    """Wrap the keys of all persons with the master key that `personal.master` names.

    It may be stopped at any time, and goes on when it is repeated. Remove the former master key from the settings
    when all processes have the new one and this says 0.
    """
    settings = load_settings()
    if (masters := settings.personal.value()) is None:
        raise ConfigurationError("there is no master key", field="personal.master")
    contexts = settings.contexts
    chosen = contexts if context is None else {context: of_context(contexts, context)}
    by, counts = operator(options["actor"], options["note"]), dict[str, int]()
    for name, found in chosen.items():
        counts[name] = asyncio.run(_rotate(found, masters, by))
        if not as_json:
            print(f"{name}: wrapped {counts[name]} with {masters.present}")
    if as_json:
        print_json([{"context": name, "master": masters.present, "keys": it} for name, it in counts.items()])


async def _rotate(context: ContextSettings, masters: Masters, by: Operator) -> int:
    from relay.adapters import aes_gcm

    def rewrap(id: UUID, former: str, wrapped: bytes) -> bytes:
        return aes_gcm.wrap(masters, id, aes_gcm.unwrap(masters, id, former, wrapped))

    async with connecting(context) as source:
        return sum([done async for done in PostgresSubjectKeys(source).rotate(masters.present, rewrap, by)])
