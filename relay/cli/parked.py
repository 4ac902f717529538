"""`relay parked`: keys that an ordered subscription has set aside behind a dead letter."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from relay.adapters.postgres.incidents import PostgresParkedKeys
from relay.cli.operating import (
    ACTING,
    ColumnsOption,
    ContextOption,
    JsonOption,
    Options,
    WideOption,
    ask,
    chosen,
    confirm,
    one_context,
    operator,
    report,
    visiting,
    with_options,
)
from relay.cli.tables import View, print_rows
from relay.cli.tables import columns as named
from relay.domain.disclosure import stack_of
from relay.domain.errors import TooMany

app = typer.Typer(help="Keys set aside behind a dead letter: list, release.", no_args_is_help=True)

_VIEW: Final = View(columns=named("context", "subscription", "key", "head", "waiting", "since", "reason"), lead=4)
_RELEASE: Final[Options] = {
    "ids": (Annotated[list[str] | None, typer.Argument(help="Keys, by the names of `list`.")], None),
    "everything": (Annotated[bool, typer.Option("--all", help="Every parked key of the context.")], False),
    "subscription": (Annotated[str | None, typer.Option("--subscription", help="Of this subscription.")], None),
    **ACTING,
}


@app.command("list")
def list_(
    context: ContextOption = None,
    as_json: JsonOption = False,
    columns: ColumnsOption = None,
    wide: WideOption = False,
) -> None:
    """List parked keys, the longest parked first. Status 1 if a database does not answer."""
    view = _VIEW.choose(columns)
    with visiting(context, lambda url: ask(url, lambda source: PostgresParkedKeys(source).list())) as found:
        rows = [
            {"context": name, **key, "reason": stack_of(key["reason"])[0]}
            for name, keys in found.items()
            for key in keys
        ]
        if as_json:
            found.print_json(rows)
            return
        if rows:
            print_rows(view, rows, wide=wide)
        elif found:
            print(f"No parked keys in {', '.join(found)}.")
        if found.failed:
            print(found.unread())


@app.command()
@with_options(_RELEASE)
def release(*, options: dict[str, Any]) -> None:
    """Let keys go on in order: first the message that died, with new attempts, then those behind it."""
    chosen(options, ["everything"])
    name, url = one_context(options["context"], lambda found: bool(found.subscriptions))
    by = operator(options["actor"], options["note"])
    keys, subscription = options["ids"] or None, options["subscription"]
    count = len(keys) if keys else len(ask(url, lambda source: PostgresParkedKeys(source).list()))
    if count > options["limit"]:
        raise TooMany(f"{count} keys and the limit is {options['limit']}", hint="name keys or raise --limit")
    confirm(f"{count} keys of {name} will be released. Go on?", count, yes=options["yes"])
    outcome = ask(url, lambda source: PostgresParkedKeys(source).release(keys, subscription, by))
    report(name, "released", outcome, as_json=options["as_json"])
