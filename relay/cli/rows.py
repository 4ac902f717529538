"""The commands of each kind of rows: list, show, and its actions, made from its description."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from keyword import iskeyword
from pathlib import Path
from shutil import copyfileobj
from typing import Annotated, Any, Final, TypeAlias, get_args
from uuid import UUID

import typer

from relay.adapters.postgres.bounded import PAYLOAD
from relay.adapters.postgres.paging import Page, Row, counted
from relay.bus.errors import NothingFound
from relay.cli.options import (
    ACTING,
    NOTE_REQUIRED,
    ColumnsOption,
    ContextOption,
    JsonOption,
    OneContextOption,
    Options,
    WideOption,
    as_id,
    as_time,
    check_selection,
    confirm,
    one_context,
    operator,
    print_failure,
    print_json,
    query_context,
    report,
    run_command,
    unread,
    visiting_contexts,
    which_context,
    with_options,
)
from relay.cli.tables import View, print_fields, print_rows
from relay.domain.durations import duration
from relay.domain.errors import InvalidRequest, RelayError
from relay.domain.foreign_json import read_json
from relay.domain.incidents import show_original
from relay.domain.operators import Outcome
from relay.domain.personal import in_short
from relay.domain.reasons import CODES, FAMILIES
from relay.ops.kinds import Action, Filter, Kind, Listing
from relay.ops.kinds.model import Order, either
from relay.ops.requests import ActOnRows, FindRows, GetRow, ReadPayload
from relay.settings import ContextSettings, load_settings

#: Called with what was done, before the answer is printed.
After: TypeAlias = Callable[[ContextSettings, Outcome], object]
MakeAfter: TypeAlias = Callable[[dict[str, Any]], After | None]
#: Options of each list.
LISTING: Final[Options] = {
    "limit": (Annotated[int, typer.Option(min=1, max=10_000, help="How many to show, the first in order.")], 50),
    "order": (Annotated[Order, typer.Option(help="Whether the newest come first, or the oldest.")], Order.NEWEST),
    "context": (ContextOption, None),
    "as_json": (JsonOption, False),
    "columns": (ColumnsOption, None),
    "wide": (WideOption, False),
}
_MAX_NAMES: Final = 8


def _at_once(_: dict[str, Any]) -> None:
    """Nothing follows an action."""


def group_of(kind: Kind, more: Options | None = None, after: MakeAfter = lambda _: None) -> typer.Typer:
    """Return the commands of a kind.

    ``more``: options of actions that workers carry out; ``after`` makes a call from them.
    """
    rows = RowCommands(kind)
    app = typer.Typer(help=kind.help, no_args_is_help=True)
    app.command("list")(_list(rows))
    app.command("show")(_show(rows))
    for action in kind.actions:
        waits = action.reported and more
        app.command(action.name)(
            _act(rows, action, more or {}, after) if waits else _act(rows, action, {}, _at_once)
        )
    return app


def view_of(kind: Listing, *, lead: int, of_context: bool = True) -> View:
    """Return the table of a kind. ``of_context``: its first column is the context of a row."""
    headings = {(kind.column(it).typed or it).replace("_", " "): it for it in kind.table}
    return View(columns={"context": "context", **headings} if of_context else headings, lead=lead)


# --- options ---


def option_of(it: Filter) -> str:
    """The name of the option of a filter."""
    return f"--{(it.option or it.name).replace('_', '-')}"


def parameter_of(it: Filter) -> str:
    """The name by which the option of a filter is found among the options."""
    word = it.option or it.name
    return f"{word}_" if iskeyword(word) else word


def filter_options(kind: Listing) -> Options:
    """Return the options of a kind's filters."""
    options: Options = {}
    for it in kind.filters:
        if it.rest_of:
            continue
        text = f"{it.meaning}: {it.how}." if it.how else f"{it.meaning}."
        option: Any = typer.Option(option_of(it), help=text, autocompletion=_complete if it.reasons else None)
        values: Any = str | None if it.choices is None else list[it.choices]  # type: ignore[name-defined]
        options[parameter_of(it)] = (Annotated[values, option], None if it.choices is None else ())
    return options


def filter_values(kind: Listing, options: dict[str, Any]) -> dict[str, Any]:
    """Return the value of each filter, by its name, from the options. Raises InvalidRequest."""
    values: dict[str, Any] = {}
    for it in kind.filters:
        value = options.get(parameter_of(it))
        if it.form == "time":
            value = as_time(value, option_of(it))
        elif it.form == "id" and value is not None:
            value = str(as_id(value, option_of(it)))
        values[it.name] = value
        if it.rest_of:
            first, _, rest = (values[it.rest_of] or "").partition(":")
            values |= {it.rest_of: first or None, it.name: rest or None}
    return values


def _complete(incomplete: str) -> Iterator[tuple[str, str]]:
    codes = {**{code.name: code.meaning for code in CODES}, **FAMILIES}
    return ((name, meaning) for name, meaning in codes.items() if name.startswith(incomplete))


def _argument_options(action: Action) -> Options:
    types: dict[str, Any] = {"number": int}
    return {
        f"argument_{it.name}": (
            Annotated[
                types.get(it.form, str),
                typer.Option(f"--{it.name.replace('_', '-')}", help=f"{it.meaning}: {it.hint}."),
            ],
            "" if it.optional else ...,
        )
        for it in action.arguments
    }


# --- rows of a kind ---


class RowCommands:
    """Lists the rows of a kind, shows one, and acts on many."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.filters = filter_options(kind)
        self.view = view_of(kind, lead=3)
        self.more = [it.name for it in kind.columns if it.name not in kind.table]

    def wanted(self, options: dict[str, Any], states: Sequence[str]) -> Any:
        """Return the filter that the options say, of rows in these states. Raises InvalidRequest."""
        return self.kind.wanted(filter_values(self.kind, options), states)

    def list(self, options: dict[str, Any], states: Sequence[str]) -> None:
        """Print what each context's database finds. Status 1 if one does not answer."""
        view = self.view.choose(options["columns"], self.more)
        wanted, limit = self.wanted(options, states), options["limit"]
        oldest = options["order"] is Order.OLDEST
        everything = self.kind.wanted({}, self.kind.states)

        async def look(context: ContextSettings) -> tuple[Page[Row], int]:
            find = {"kind": self.kind.path, "context": context.name}
            page: Page[Row] = await query_context(
                context, FindRows(**find, wanted=wanted, limit=limit, oldest=oldest)
            )
            if page.items:
                return page, 0
            others: Page[Row] = await query_context(
                context, FindRows(**find, wanted=everything, limit=1, thorough=False)
            )
            return page, others.total

        with visiting_contexts(options["context"], lambda found: asyncio.run(look(found))) as answers:
            rows = [{"context": name, **row} for name, (page, _) in answers.items() for row in page.items]
            if options["as_json"]:
                answers.print_json(rows)
                return
            if rows:
                print_rows(view, rows, wide=options["wide"])
                if (total := sum(page.total for page, _ in answers.values())) > len(rows):
                    print(f"{len(rows)} of {counted(total)}; --limit shows more")
            elif answers:
                print(self._nothing(options, states, {name: others for name, (_, others) in answers.items()}))
            if unconfirmed := sum(page.unconfirmed for page, _ in answers.values()):
                print(f"and {counted(unconfirmed)} unconfirmed letters: --class unconfirmed")
            if answers.failed:
                print(answers.unread())

    def _nothing(self, options: dict[str, Any], states: Sequence[str], others: dict[str, int]) -> str:
        """Say what was looked for, and how many rows there are besides."""
        which = "" if len(states) == len(self.kind.states) else f"{either(states)} "
        typed = self._typed(options)
        places = ", ".join([*others][:_MAX_NAMES])
        more = f" and {len(others) - _MAX_NAMES} more" if len(others) > _MAX_NAMES else ""
        line = f"No {which}{self.kind.many}{f' with {typed}' if typed else ''} in {places}{more}."
        if not (total := sum(others.values())):
            return line
        hidden = either([it for it in self.kind.states if it not in states])
        see = f" See --status {hidden}." if hidden else ""
        return f"{line}\nIn all states{', without the filter' if typed else ''}: {counted(total)}.{see}"

    def _typed(self, options: dict[str, Any]) -> str:
        """Return the filters as they were typed."""
        words = []
        for name, (kind, default) in self.filters.items():
            values = options[name] if isinstance(options[name], list | tuple) else [options[name]]
            if options[name] != default and options[name]:
                flag = get_args(kind)[1].default  # typer reads the first name there
                words += [f"{flag} {it.value if isinstance(it, Enum) else it}" for it in values]
        return " ".join(words)

    def key(self, id: Any) -> Any:
        """Read an id. Raises InvalidRequest."""
        return as_id(id, "id") if self.kind.id is str else self.kind.key(str(id))

    def get(self, id: Any, context: str | None, *, payload: bool = False) -> dict[str, Any]:
        """Return all fields of one row, with its context, and maybe with the beginning of its ``payload``.

        Raises the kind's error if there is none. Without a context, all contexts are searched for a UUID. Raises
        InvalidRequest if several have it.
        """
        missing = self.kind.unknown(str(id)[:200])
        if context is None and isinstance(id, UUID):
            return self._get_anywhere(id, missing, payload=payload)
        row = self._look(one_context(context, self.kind.fits), id, payload=payload)
        if row is None:
            raise missing
        return row

    def _get_anywhere(self, id: UUID, missing: RelayError, *, payload: bool) -> dict[str, Any]:
        """Search all contexts.

        One that does not answer gets a line on stderr, and the others are still searched.
        """
        contexts = [context for context in load_settings().contexts.values() if self.kind.fits(context)]
        rows, failed = [], 0
        for context in contexts:
            try:
                rows += [it] if (it := self._look(context, id, payload=payload)) else []
            except RelayError as error:
                failed += 1
                print_failure(f"context {context.name}", error)
        if len(rows) > 1:
            raise which_context(it["context"] for it in rows)
        if failed and not rows:
            print(unread(failed, len(contexts)))
            raise typer.Exit(1)
        if not rows:
            raise missing
        return rows[0]

    def _look(self, context: ContextSettings, id: object, *, payload: bool) -> dict[str, Any] | None:
        query = GetRow(kind=self.kind.path, context=context.name, id=id, payload=payload)
        try:
            row: Row = asyncio.run(query_context(context, query))
        except NothingFound:
            return None
        return {"context": context.name, **row}

    def save(self, id: Any, context: str, path: Path) -> None:
        """Write the whole payload of a row into a file. Raises InvalidRequest if the file cannot be written."""
        query = ReadPayload(kind=self.kind.path, context=context, id=id)
        with asyncio.run(query_context(one_context(context, self.kind.fits), query)) as found:
            try:
                with path.open("wb") as file:
                    copyfileobj(found, file)
            except OSError as error:
                raise InvalidRequest(f"{path}: {error.strerror}", field="--payload-to") from None

    def choose(self, options: dict[str, Any], states: Sequence[str]) -> tuple[ContextSettings, Sequence[Any]]:
        """Return the context, and the ids given or those of all rows that the filters find.

        Raises InvalidRequest, and TooMany if more are found than ``--limit`` allows.
        """
        context = one_context(options["context"], self.kind.fits)
        check_selection(options, self.filters)
        if options["ids"]:
            return context, [self.key(id) for id in options["ids"]]
        limit = options["limit"]
        query = FindRows(
            kind=self.kind.path, context=context.name, wanted=self.wanted(options, states), limit=limit
        )
        return context, [row["id"] for row in asyncio.run(query_context(context, query)).all_of(limit)]

    def act(self, action: Action, options: dict[str, Any], after: After | None) -> None:
        """Ask whether to act on what is chosen, act in one transaction, answer by id."""
        narrowing = {it.name for it in self.kind.filters if options.get(parameter_of(it))}
        self.kind.check(action, narrowing, every=bool(options.get("everything")))
        texts = {it.name: str(options[f"argument_{it.name}"]) for it in action.arguments}
        arguments = action.read(texts, "--{}")
        context, ids = self.choose(options, action.states)
        name, as_json = context.name, options["as_json"]
        if options["dry_run"]:
            count = {"context": name, "action": action.past, "dry_run": True, "count": len(ids)}
            print_json(count) if as_json else print(f"{name}: {len(ids)} {self.kind.many} would be {action.past}")
            return
        by = operator(options["actor"], options["note"])
        confirm(
            f"{len(ids)} {self.kind.many} of {name} will be {action.past}. Go on?", len(ids), yes=options["yes"]
        )
        wanted = None if options["ids"] else self.wanted(options, action.states)
        command = ActOnRows(
            kind=self.kind.path,
            action=action.name,
            context=name,
            ids=ids,
            wanted=wanted,
            limit=options["limit"],
            arguments=arguments,
            by=by,
        )
        outcome = asyncio.run(run_command(context, command))
        if after:
            after(context, outcome)
        report(name, action.past if after else action.reported or action.past, outcome, as_json=as_json)


# --- commands ---


def _list(rows: RowCommands) -> Callable[..., None]:
    kind = rows.kind
    rest = [it for it in kind.states if it not in kind.urgent]
    few = len(rest) < len(kind.urgent)
    urgent = f"All except {either(rest, 'and')}" if few else either(kind.urgent, "and")
    state: Any = Enum("State", [(it.upper(), it) for it in kind.states])  # type: ignore[misc] # made at run time
    states: Options = {
        "status": (
            Annotated[
                list[state],
                typer.Option("--status", help=f"{urgent[0].upper()}{urgent[1:]} {kind.many} if not given."),
            ],
            [],
        ),
        "everything": (
            Annotated[bool, typer.Option("--all", help=f"{either(rest, 'and').capitalize()} {kind.many} too.")],
            False,
        ),
    }

    @with_options(states | LISTING | rows.filters)
    def list_(*, options: dict[str, Any]) -> None:
        named = [it.value for it in options["status"]]
        rows.list(options, kind.states if options["everything"] else named or kind.urgent)

    list_.__doc__ = f"{kind.listing} Status 1 if a database does not answer."
    return list_


def _show(rows: RowCommands) -> Callable[..., None]:
    kind = rows.kind
    # Numbers are of one context; any other id is looked for in all.
    context: Any = OneContextOption if kind.id is int else ContextOption
    options: Options = {
        "id": (Annotated[kind.id, typer.Argument(help=f"The {kind.one}, by its id.")], ...),
        "payload": (
            Annotated[bool, typer.Option("--payload", help="Show the payload too, up to 256 KiB.")],
            False,
        ),
        "payload_to": (Annotated[Path | None, typer.Option(help="Write the whole payload to this file.")], None),
        "context": (context, None),
        "as_json": (JsonOption, False),
    }

    @with_options(options)
    def show(*, options: dict[str, Any]) -> None:
        fields = rows.get(rows.key(options["id"]), options["context"], payload=options["payload"])
        if options["payload_to"] is not None:
            rows.save(rows.key(options["id"]), fields["context"], options["payload_to"])
        body = _body(kind, fields, as_json=options["as_json"]) if options["payload"] else {}
        _print_one(fields, body, as_json=options["as_json"])

    show.__doc__ = f"Show one {kind.one}: {kind.shows}."
    return show


def _body(kind: Kind, fields: dict[str, Any], *, as_json: bool) -> dict[str, Any]:
    """Take the payload out of a row, as a person or a program reads it."""
    found, size = fields.pop(kind.body), fields["payload_bytes"]
    cut = size is None or size > PAYLOAD
    if kind.body != "payload":
        body: dict[str, Any] = dict(show_original(found, cut=cut))
    else:
        body = {"payload": read_json(found) if as_json and not cut else found}
    if not as_json and isinstance(text := body.get("payload"), str):
        body["payload"] = in_short(text)
    return body | ({"payload_cut": "the rest: --payload-to FILE"} if cut else {})


_ATTEMPTS: Final = View(
    columns={
        "no": "number",
        "outcome": "outcome",
        "began": "began",
        "took": "took",
        "worker": "worker",
        "release": "release",
        "error": "error",
    },
    lead=3,
)


def _attempt(it: dict[str, Any]) -> dict[str, Any]:
    """An attempt as a line. What a lost one would have told is not known."""
    took = "" if it["seconds"] is None else duration(it["seconds"])
    lost = "no answer: its worker died or was cut off" if it["outcome"] == "lost" else ""
    number = f"{it['number']} of requeue {it['round']}" if it["round"] else it["number"]
    error = " ".join([it["error"] or lost, *(f"from {line}" for line in it["stack"])]).strip()
    return it | {"number": number, "took": took, "began": it["began"] or it["ended"], "error": error}


def _print_one(fields: dict[str, Any], payload: dict[str, Any], *, as_json: bool) -> None:
    """Print one row, its ``history`` (who did what to it), and last its payload, if asked for."""
    history, attempts = fields.pop("history"), fields.pop("attempt_log", [])
    if as_json:
        print_json({**fields, "attempt_log": attempts, "history": history, **payload})
        return
    entries = [f"{entry['at']:%F %T} {entry['actor']} {entry['action']}" for entry in history]
    print_fields({**fields, **({"history": "; ".join(entries)} if entries else {}), **payload})
    if attempts:
        print("\nattempts, the last first:")
        print_rows(_ATTEMPTS, [_attempt(it) for it in reversed(attempts)])


def _act(rows: RowCommands, action: Action, more: Options, after: MakeAfter) -> Callable[..., None]:
    kind = rows.kind
    ids = f"{kind.many.capitalize()}, by the ids of `list`."
    every = f"Every {either(action.states)} {kind.one} of the context."
    options: Options = {
        "ids": (Annotated[list[kind.id] | None, typer.Argument(help=ids)], None),  # type: ignore[name-defined]
        **({} if action.narrowed else {"everything": (Annotated[bool, typer.Option("--all", help=every)], False)}),
        **_argument_options(action),
        "dry_run": (Annotated[bool, typer.Option("--dry-run", help="Print how many, and change nothing.")], False),
        **rows.filters,
        **ACTING,
        **(NOTE_REQUIRED if action.needs_note else {}),
        **more,
    }

    @with_options(options)
    def act(*, options: dict[str, Any]) -> None:
        rows.act(action, options, after(options))

    act.__doc__ = action.about
    return act
