"""`relay forget`: destroys the keys of a person, or redacts values that were never declared personal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from datetime import UTC
from typing import Annotated, Any, Final

import typer

from relay.cli import redaction
from relay.cli.options import ACTING, ContextOption, Options, asking, confirm, operator, print_json, with_options
from relay.domain.errors import of_context
from relay.ops.forgetting import ForgetPerson, Forgetting, PersonCertificate, check_person
from relay.settings import ContextSettings, load_settings

#: How long a database may take.
_PATIENCE_S: Final = 60.0


_DRY_RUN: Final[Options] = {
    "dry_run": (
        Annotated[bool, typer.Option("--dry-run", help="With --scan: count by place, and change nothing.")],
        False,
    )
}


@with_options({**redaction.OPTIONS, **_DRY_RUN, **{name: ACTING[name] for name in ("note", "actor", "yes")}})
def forget(
    *,
    subject: Annotated[
        str | None, typer.Argument(help="The person, as in the field that `subject` of an event names.")
    ] = None,
    context: ContextOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the certificate as JSON.")] = False,
    options: dict[str, Any],
) -> None:
    """Forget a person: destroy the keys of all personal values, in each context, for ever.

    What is stored stays, and nobody can read these values any more; processes forget a key within a minute. Prints
    a certificate; again prints the same. Status 1 if a context did not answer: then run it again.

    With --scan: look for values in all tables, streams and archives, show how many there are, and redact them for
    ever. Messages that have them are erased from the streams. Status 1 if some are left: then run it again.
    """
    if (found := redaction.wanted(options, subject)) is not None:
        redaction.forget(found, context, options, as_json=as_json)
        return
    assert subject is not None
    check_person(subject)
    contexts: Mapping[str, ContextSettings] = load_settings().contexts
    if context is not None:
        contexts = {context: of_context(contexts, context)}
    forgetting = Forgetting(contexts, asking, _PATIENCE_S)
    confirm(f"Destroy the keys of {subject!r} for ever?", 2, yes=options["yes"])
    asked = ForgetPerson(subject=subject, by=operator(options["actor"], options["note"]))
    done = asyncio.run(forgetting.forget(asked))
    if as_json:
        print_json(done.as_dict())
    else:
        _print(done)
    for name, error in done.unread.items():
        print(f"could not reach {name}: {error}", file=sys.stderr)
    if done.unread:
        raise typer.Exit(1)


def _print(found: PersonCertificate) -> None:
    print(f"Certificate: the keys of {found.subject!r} are destroyed.")
    for name, keys in found.keys.items():
        print(f"{name}: {len(keys) or 'no'} key{'' if len(keys) == 1 else 's'}")
        for it in keys:
            when = it.forgotten_at.astimezone(UTC).isoformat(timespec="seconds")
            print(f"  {it.id}\n    destroyed{' already' if it.already else ''} at {when} by {it.by or 'unknown'}")
