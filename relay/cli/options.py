"""Shared by the commands: which contexts, who acts, confirmation, the answer, reading and printing values."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pwd
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from datetime import UTC, datetime
from functools import wraps
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import typer

from relay.adapters.postgres.pool import Source, connected
from relay.bus import Command, Query, QueryBus
from relay.cli.tables import plain
from relay.domain.errors import InvalidKey, InvalidRequest, RelayError, of_context
from relay.domain.identity import Id, check_id
from relay.domain.operators import Operator, Outcome
from relay.ops.handlers import RowHandlers
from relay.ops.requests import ASKED_S, TYPED
from relay.settings import ContextSettings, load_settings
from relay.settings.values import parse_duration

Answer = TypeVar("Answer")

Options = dict[str, tuple[Any, Any]]


def _contexts(incomplete: str) -> list[str]:
    """Complete the name of a context."""
    try:
        return [name for name in load_settings().contexts if name.startswith(incomplete)]
    except RelayError:
        return []


ContextOption = Annotated[
    str | None,
    typer.Option("--context", help="Only this context; all if not given.", autocompletion=_contexts),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print a JSON list.")]
OneContextOption = Annotated[
    str | None,
    typer.Option("--context", help="Needed if several contexts are configured.", autocompletion=_contexts),
]
ColumnsOption = Annotated[
    str | None, typer.Option("--columns", help="Show only these columns, in this order: NAME,NAME,…")
]
WideOption = Annotated[bool, typer.Option("--wide", help="Show all columns, one line for each row.")]
#: The options of commands that act; each as (type, default).
ACTING: Final[Options] = {
    "limit": (
        Annotated[int, typer.Option(min=1, max=100_000, help="Refuse to act on more rows than this.")],
        1_000,
    ),
    "note": (Annotated[str | None, typer.Option("--note", help="The reason; it is kept with the action.")], None),
    "actor": (
        Annotated[str | None, typer.Option("--actor", help="Who acts; the user of this shell if not given.")],
        None,
    ),
    "yes": (Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")], False),
    "context": (OneContextOption, None),
    "as_json": (JsonOption, False),
}
NOTE_REQUIRED: Final[Options] = {
    "note": (
        Annotated[str, typer.Option("--note", help="The reason; it is kept with the action.")],
        ...,
    )
}


class Answers(dict[str, Answer]):
    """The answer of each context, and the error of each that ``failed``."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: dict[str, RelayError] = {}

    def unread(self) -> str:
        """Say how many contexts could not be read; nothing where all could."""
        return unread(len(self.failed), len(self) + len(self.failed))

    def first(self, parts: Mapping[str, Sequence[Any]]) -> Mapping[str, Sequence[Any]]:
        """The beginning of the list of each context, and a line on stderr where there is more."""
        for name in [name for name, rows in parts.items() if len(rows) > TYPED]:
            print(f"{name} has more than {TYPED} of these; `relay ops` gives the rest by offset", file=sys.stderr)
        return {name: rows[:TYPED] for name, rows in parts.items()}

    def print_json(self, found: Iterable[Mapping[str, Any]]) -> None:
        """Print a list of what was ``found``, and behind it an entry with ``error`` for each that failed."""
        errors = [{"context": name, "error": coded(error)} for name, error in self.failed.items()]
        print_json([*found, *errors])


@contextmanager
def visiting(context: str | None, question: Callable[[str], Answer]) -> Iterator[Answers[Answer]]:
    """Do as `visiting_contexts`, and call ``question`` with the database address of each context."""
    with visiting_contexts(context, lambda found: question(found.database)) as answers:
        yield answers


@contextmanager
def visiting_contexts(
    context: str | None, question: Callable[[ContextSettings], Answer]
) -> Iterator[Answers[Answer]]:
    """Call ``question`` with the settings of each context, and lend the answers. Status 1 if one is missing.

    A context that fails gets a line on stderr, and the others are still asked. Raises UnknownContext and
    ConfigurationError.
    """
    contexts = load_settings().contexts
    chosen = contexts if context is None else {context: of_context(contexts, context)}
    answers: Answers[Answer] = Answers()
    for name, found in chosen.items():
        try:
            answers[name] = question(found)
        except RelayError as error:
            answers.failed[name] = error
            print_failure(f"context {name}", error)
    yield answers
    if answers.failed:
        raise typer.Exit(1)


def unread(failed: int, asked: int) -> str:
    """Say how many contexts could not be read; nothing where all could."""
    return f"could not read {failed} of {asked} context{'s' if asked > 1 else ''}" if failed else ""


def coded(error: RelayError) -> dict[str, str | None]:
    """Return an error as JSON shows it."""
    return {"code": error.code, "message": error.message, "hint": error.hint}


def print_failure(what: str, error: RelayError) -> None:
    """Print a line on stderr about what failed, or was refused."""
    hint = f" ({error.hint})" if error.hint else ""
    print(f"error {error.code}: {what}: {error.message}{hint}", file=sys.stderr)


def one_context(name: str | None, fits: Callable[[ContextSettings], bool]) -> ContextSettings:
    """Return the context to act in. Ids are valid in one context only.

    Raises UnknownContext. Raises InvalidRequest when no context is given and several fit.
    """
    contexts = load_settings().contexts
    if name is None:
        fitting = [found for found in contexts if fits(contexts[found])]
        if len(fitting) != 1:
            raise which_context(contexts)
        name = fitting[0]
    return of_context(contexts, name)


def which_context(names: Iterable[str]) -> InvalidRequest:
    """Return the error of a command that needs one of these contexts."""
    return InvalidRequest("say which context", field="--context", hint=f"one of: {', '.join(names)}")


def ask(url: str, question: Callable[[Source], Awaitable[Answer]]) -> Answer:
    """Ask one database. Raises DatabaseUnreachable and SchemaMissing."""

    async def once() -> Answer:
        async with connected(url, "operator") as source:
            return await question(source)

    return asyncio.run(once())


async def query_context(found: ContextSettings, query: Query[Answer]) -> Answer:
    """Ask the bus about one context. Raises DatabaseUnreachable, TooSlow, SchemaMissing, and NothingFound."""
    return (await RowHandlers({found.name: found}, asking).answer(QueryBus()).ask_async(query)).unwrap()


async def run_command(found: ContextSettings, command: Command[Answer]) -> Answer:
    """Carry out a command in one context, by the bus. Raises DatabaseUnreachable and SchemaMissing."""
    return (await RowHandlers({found.name: found}, connecting).commands().dispatch_async(command)).unwrap()


def connecting(found: ContextSettings) -> AbstractAsyncContextManager[Source]:
    """Open one connection to the database of a context, for one question."""
    return connected(found.database, "operator")


def asking(found: ContextSettings) -> AbstractAsyncContextManager[Source]:
    """As `connecting`, with a limit for each statement: nobody waits longer, and the server has other work."""
    return connected(found.database, "operator", ASKED_S)


def operator(actor: str | None, note: str | None) -> Operator:
    """Who acts: ``--actor``, else the user this process runs as. Raises InvalidRequest."""
    if actor is None:
        try:
            actor = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            actor = f"uid {os.getuid()}"
    return Operator(actor, note)


def confirm(question: str, count: int, *, yes: bool) -> None:
    """Ask before acting on more than one thing. No answer means no, with status 1."""
    if count > 1 and not yes:
        typer.confirm(question, abort=True, err=True)


def report(context: str, action: str, outcome: Outcome, *, as_json: bool) -> None:
    """Print the result for each id. Status 1 if one was refused."""
    if as_json:
        refused = [{"id": id, "code": error.code, "message": error.message} for id, error in outcome.refused]
        told = {"deed": outcome.deed, "left": outcome.left, "gone": outcome.gone}
        print_json({"context": context, "action": action, "done": outcome.done, "refused": refused, **told})
    else:
        print(f"{context}: {action} {len(outcome.done)}")
        if outcome.left:
            print(f"{outcome.left} that fitted besides were left: they came after the count")
        if outcome.gone:
            print(f"{outcome.gone} of those that were counted did not fit any more")
    for id, error in outcome.refused:
        print_failure(id, error)
    if outcome.refused:
        raise typer.Exit(1)


def check_selection(options: dict[str, Any], filters: Iterable[str]) -> None:
    """Check that a command names ids or a filter, not both and not nothing. Raises InvalidRequest."""
    selected = options.get("everything") or any(options[name] for name in filters)
    if options["ids"] and selected:
        raise InvalidRequest("give ids or a filter, not both")
    if not options["ids"] and not selected:
        raise InvalidRequest("say which: ids or a filter", hint="--help lists the filters")


def with_options(options: Options) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options, as its dict ``options``. Each is (type, default); `...`: none."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**values: Any) -> None:
            taken = {name: values.pop(name) for name in options}
            command(**values, options=taken)

        own = [p for p in inspect.signature(command).parameters.values() if p.name != "options"]
        keyword = inspect.Parameter.KEYWORD_ONLY
        shared = [
            inspect.Parameter(name, keyword, default=inspect.Parameter.empty if default is ... else default)
            for name, (_, default) in options.items()
        ]
        own = [parameter.replace(kind=keyword) for parameter in own]
        hints = get_type_hints(command, include_extras=True) | {name: kind for name, (kind, _) in options.items()}
        hints.pop("options")
        parameters = [p.replace(annotation=hints[p.name]) for p in (*own, *shared)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = hints
        return run

    return decorate


# --- values from the command line ---


def as_time(text: str | None, field: str) -> datetime | None:
    """Read ``90m`` (so long ago) or an ISO 8601 time, UTC if it names no zone. Raises InvalidRequest.

    A number without a unit is not a time: 2025 is meant as a year, not as seconds.
    """
    if text is None:
        return None
    if text.strip()[-1:].isalpha():
        with suppress(ValueError):
            return datetime.now(UTC) - parse_duration(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"{text[:40]!r} is not a time; write 90m, 2d or 2026-01-31T03:00Z", field=field
        ) from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def as_id(text: str | None, field: str) -> Id | None:
    """Read an id: a UUID, or any other text. Raises InvalidRequest."""
    try:
        return None if text is None else check_id(text, field).value
    except InvalidKey as error:
        raise InvalidRequest(error.message, field=field) from None


# --- printing ---


def print_json(value: object) -> None:
    """Print JSON; times in UTC, ids as text."""
    print(json.dumps(value, indent=2, default=plain))
