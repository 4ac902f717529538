"""What `relay dlq`, `relay outbox` and `relay tasks` have in common: list things, show one, act on many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Final

import typer

from relay.adapters.postgres.operating import Page, counted
from relay.adapters.postgres.pool import Source
from relay.cli.empty import Absence, instead, told
from relay.cli.operating import (
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
    print_json,
    report,
    visiting,
)
from relay.cli.tables import View, print_fields, print_rows
from relay.domain.errors import RelayError
from relay.domain.operators import Operator, Outcome
from relay.domain.reasons import CODES, FAMILIES
from relay.settings import ContextSettings

#: An action of a store: it gets the ids and who acts.
Action = Callable[[Any, Sequence[Any], Operator], Awaitable[Outcome]]

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

    ``store`` makes the operations on one database. ``filters``: the options from which ``wanted`` makes a filter
    of things in these ``states``. ``view``: how they are listed; ``more``: what other fields a list may show.
    ``called``: the word for many of them. ``text``: the filter by reason, and its field. ``fits``: whether a
    context may have any.
    """

    store: Callable[[Source], Any]
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

        async def look(source: Source) -> tuple[Page[dict[str, Any]], Absence | None]:
            page = await self.store(source).find(wanted, limit)
            return page, None if page.items else await instead(self, source, options, states)

        with visiting(options["context"], lambda url: ask(url, look)) as answers:
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
        """Return all fields of one thing. Raises ``missing``."""
        _, url = one_context(context, self.fits)
        found: dict[str, Any] | None = ask(url, lambda source: self.store(source).get(id))
        if found is None:
            raise missing
        return found

    def choose(self, options: dict[str, Any], states: object) -> tuple[str, str, Sequence[Any]]:
        """Return the context, its database, and the ids given or those of all things that the filters find.

        Raises InvalidRequest, and TooMany if more are found than ``--limit`` allows.
        """
        name, url = one_context(options["context"], self.fits)
        chosen(options, self.filters)
        if options["ids"]:
            return name, url, options["ids"]
        limit = options["limit"]
        page = self._find(url, self.wanted(options, states), limit)
        return name, url, [found["id"] for found in page.all_of(limit)]

    def act(self, done: str, action: Action, options: dict[str, Any], states: object, reported: str = "") -> None:
        """Ask whether what is chosen may be ``done`` (such as "discarded"), act in one transaction, answer by id.

        ``reported``: the word for ``done`` in the answer, if it is another. What a filter chose and does not find
        any more, as it has changed meanwhile, is left out of the answer: the operator named no such thing.
        """
        name, url, ids = self.choose(options, states)
        by = operator(options["actor"], options["note"])
        confirm(f"{len(ids)} {self.called} of {name} will be {done}. Go on?", len(ids), yes=options["yes"])
        outcome = ask(url, lambda source: action(self.store(source), ids, by))
        if outcome.refused and not options["ids"]:
            page = self._find(url, self.wanted(options, states), options["limit"])
            outcome = outcome.refusing({str(found["id"]) for found in page.items})
        report(name, reported or done, outcome, as_json=options["as_json"])

    def _find(self, url: str, wanted: object, limit: int) -> Page[dict[str, Any]]:
        page: Page[dict[str, Any]] = ask(url, lambda source: self.store(source).find(wanted, limit))
        return page


def print_one(fields: dict[str, Any], payload: dict[str, Any], *, as_json: bool) -> None:
    """Print one thing with who did what to it, its ``history``, and behind that its payload, if asked for."""
    history = fields.pop("history")
    if as_json:
        print_json({**fields, "history": history, **payload})
        return
    acts = [f"{entry['at']:%F %T} {entry['actor']} {entry['action']}" for entry in history]
    print_fields({**fields, "history": "; ".join(acts), **payload})
