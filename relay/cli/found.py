"""What `relay dlq`, `relay outbox` and `relay tasks` have in common: list things, show one, act on many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from relay.adapters.postgres.operating import Page, counted
from relay.adapters.postgres.pool import Source
from relay.cli.operating import (
    ContextOption,
    JsonOption,
    Options,
    ask,
    chosen,
    confirm,
    one_context,
    operator,
    print_fields,
    print_json,
    print_table,
    report,
    visiting,
)
from relay.domain.errors import RelayError
from relay.domain.operators import Operator, Outcome
from relay.settings import ContextSettings

#: The field of each column, by its heading.
Columns = Mapping[str, str]
#: An action of a store: it gets the ids and who acts.
Action = Callable[[Any, Sequence[Any], Operator], Awaitable[Outcome]]

#: The options of commands that list; each as (type, default).
LISTING: Final[Options] = {
    "limit": (Annotated[int, typer.Option(min=1, max=10_000, help="Show so many, the newest first.")], 50),
    "context": (ContextOption, None),
    "as_json": (JsonOption, False),
}


def columns(*names: str) -> Columns:
    """Return columns under the names of their fields."""
    return {name.replace("_", " "): name for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Things:
    """What a group of commands is about.

    ``store`` makes the operations on one database. ``filters``: the options from which ``wanted`` makes a filter
    of things in these states. ``called``: the word for many of them. ``fits``: whether a context may have any.
    """

    store: Callable[[Source], Any]
    filters: Options
    wanted: Callable[[dict[str, Any], Any], Any]
    shown: Columns
    called: str
    nothing: str
    fits: Callable[[ContextSettings], bool] = lambda _: True

    def list(self, options: dict[str, Any], states: object) -> None:
        """Print what each context's database finds. Status 1 if a database does not answer."""
        wanted = self.wanted(options, states)
        with visiting(options["context"], lambda url: self._find(url, wanted, options["limit"])) as pages:
            rows = [{"context": name, **found} for name, page in pages.items() for found in page.items]
            if options["as_json"]:
                print_json(rows)
            elif rows:
                print_table([*self.shown], [[row[name] for name in self.shown.values()] for row in rows])
                if (total := sum(page.total for page in pages.values())) > len(rows):
                    print(f"{len(rows)} of {counted(total)}; --limit shows more")
            else:
                print(self.nothing)

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
