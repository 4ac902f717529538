"""What `relay dlq`, `relay outbox` and `relay tasks` have in common: list things, show one, act on many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from relay.adapters.postgres.paging import Page, Row, counted
from relay.bus.errors import NothingFound
from relay.cli.empty import Absence, instead, told
from relay.cli.operating import (
    ColumnsOption,
    ContextOption,
    JsonOption,
    Options,
    WideOption,
    asked,
    chosen,
    confirm,
    done,
    one_context,
    operator,
    print_failure,
    print_json,
    report,
    unread,
    visiting_contexts,
    which_context,
)
from relay.cli.tables import View, print_fields, print_rows
from relay.domain.errors import RelayError
from relay.domain.operators import Outcome
from relay.domain.reasons import CODES, FAMILIES
from relay.ops.rows import Act, Find, Get
from relay.settings import ContextSettings, load_settings

#: The options of commands that list; each as (type, default).
LISTING: Final[Options] = {
    "limit": (Annotated[int, typer.Option(min=1, max=10_000, help="Show so many, the newest first.")], 50),
    "context": (ContextOption, None),
    "as_json": (JsonOption, False),
    "columns": (ColumnsOption, None),
    "wide": (WideOption, False),
}


def reason_option(name: str) -> Any:
    """Return the option of a filter by reason, which completes the codes."""
    text = "A code such as timeout, connection_refused, tls, status_503, raised_KeyError; or a part of the text."
    return typer.Option(name, help=text, autocompletion=_complete)


def _complete(incomplete: str) -> Iterator[tuple[str, str]]:
    known = {**{code.name: code.meaning for code in CODES}, **FAMILIES}
    return ((name, meaning) for name, meaning in known.items() if name.startswith(incomplete))


@dataclass(frozen=True, slots=True, kw_only=True)
class Things:
    """What a group of commands is about.

    ``one`` and ``find`` are the queries that look for them. ``filters``: the options from which ``wanted`` makes
    a filter of things in these ``states``. ``view``: how they are listed; ``more``: what else a list may show.
    ``called``: the word for many of them. ``text``: the filter by reason, and its field. ``fits``: whether a
    context may have any.
    """

    one: type[Get]
    find: type[Find]
    filters: Options
    wanted: Callable[[dict[str, Any], Any], Any]
    view: View
    more: Sequence[str]
    called: str
    states: type[Enum]
    text: tuple[str, str]
    fits: Callable[[ContextSettings], bool] = lambda _: True

    def list(self, options: dict[str, Any], states: Sequence[Enum]) -> None:
        """Print what each context's database finds, else what else there is. Status 1 if one does not answer."""
        view, limit = self.view.choose(options["columns"], self.more), options["limit"]
        wanted = self.wanted(options, states)

        async def look(context: ContextSettings) -> tuple[Page[Row], Absence | None]:
            page = await asked(context, self.find(context=context.name, wanted=wanted, limit=limit))
            return page, None if page.items else await instead(self, context, options, states)

        with visiting_contexts(options["context"], lambda found: asyncio.run(look(found))) as answers:
            pages = {name: page for name, (page, _) in answers.items()}
            rows = [{"context": name, **found} for name, page in pages.items() for found in page.items]
            if options["as_json"]:
                answers.print_json(rows)
                return
            if rows:
                print_rows(view, rows, wide=options["wide"])
                if (total := sum(page.total for page in pages.values())) > len(rows):
                    print(f"{len(rows)} of {counted(total)}; --limit shows more")
            elif answers:
                print(told(self, options, states, {name: it for name, (_, it) in answers.items() if it}))
            if answers.failed:
                print(answers.unread())

    def get(self, id: object, context: str | None, missing: RelayError) -> dict[str, Any]:
        """Return all fields of one thing, with its context. Raises ``missing``.

        Without a context, a UUID is looked for in all that may have it. Raises InvalidRequest if several have it.
        """
        if context is None and isinstance(id, UUID):
            return self._get_anywhere(id, missing)
        found = self._look(one_context(context, self.fits), id)
        if found is None:
            raise missing
        return found

    def _get_anywhere(self, id: UUID, missing: RelayError) -> dict[str, Any]:
        """One that does not answer gets a line on stderr: it hides nothing that another has."""
        contexts = [context for context in load_settings().contexts.values() if self.fits(context)]
        found, failed = [], 0
        for context in contexts:
            try:
                found += [it] if (it := self._look(context, id)) else []
            except RelayError as error:
                failed += 1
                print_failure(f"context {context.name}", error)
        if len(found) > 1:
            raise which_context(it["context"] for it in found)
        if failed and not found:
            print(unread(failed, len(contexts)))
            raise typer.Exit(1)
        if not found:
            raise missing
        return found[0]

    def _look(self, context: ContextSettings, id: object) -> dict[str, Any] | None:
        try:
            row: Row = asyncio.run(asked(context, self.one(context=context.name, id=id)))
        except NothingFound:
            return None
        return {"context": context.name, **row}

    def choose(self, options: dict[str, Any], states: object) -> tuple[ContextSettings, Sequence[Any]]:
        """Return the context, and the ids given or those of all things that the filters find.

        Raises InvalidRequest, and TooMany if more are found than ``--limit`` allows.
        """
        context = one_context(options["context"], self.fits)
        chosen(options, self.filters)
        if options["ids"]:
            return context, options["ids"]
        limit = options["limit"]
        query = self.find(context=context.name, wanted=self.wanted(options, states), limit=limit)
        return context, [found["id"] for found in asyncio.run(asked(context, query)).all_of(limit)]

    def act(
        self,
        word: str,
        action: type[Act],
        options: dict[str, Any],
        states: object,
        reported: str = "",
        then: Callable[[ContextSettings, Outcome], object] = lambda _context, _outcome: None,
    ) -> None:
        """Ask whether to act on what is chosen, act in one transaction, answer by id.

        ``word``: what becomes of it, such as "discarded"; ``reported``: the word in the answer, if it is another.
        ``then`` is called with what was done before the answer is printed.
        """
        context, ids = self.choose(options, states)
        name, by = context.name, operator(options["actor"], options["note"])
        confirm(f"{len(ids)} {self.called} of {name} will be {word}. Go on?", len(ids), yes=options["yes"])
        wanted = None if options["ids"] else self.wanted(options, states)
        command = action(context=name, ids=ids, wanted=wanted, limit=options["limit"], by=by)
        outcome = asyncio.run(done(context, command))
        then(context, outcome)
        report(name, reported or word, outcome, as_json=options["as_json"])


def print_one(fields: dict[str, Any], payload: dict[str, Any], *, as_json: bool) -> None:
    """Print one thing with who did what to it, its ``history``, and behind that its payload, if asked for."""
    history = fields.pop("history")
    if as_json:
        print_json({**fields, "history": history, **payload})
        return
    acts = [f"{entry['at']:%F %T} {entry['actor']} {entry['action']}" for entry in history]
    print_fields({**fields, **({"history": "; ".join(acts)} if acts else {}), **payload})
