"""What a kind of rows is to operators: filters, columns, states, actions and words, described once.

The command line makes its commands from it, the HTTP API its routes, the console its pages. Nothing here imports
one of them. A `Kind` has all three made for it: events, inbox messages, dead letters, tasks. A `Listing` says only
what the faces have in common, and each face has a page of its own: parked keys and jobs of the schedule have no
states, filters or pages; archived rows are counted in files, not listed; dead jobs are in Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, StrEnum
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from relay.adapters.postgres.row_operations import Operations
from relay.domain.errors import InvalidRequest, RelayError
from relay.domain.identity import check_id
from relay.settings import ContextSettings
from relay.settings.values import parse_duration

#: How a cell of the console shows a value. `filter`: as a link to the rows with the same value. `row`: as the id
#: of the row, with a link to its page. `life`: as an id, with a link to its life. `place`: as stream:sequence.
Show: TypeAlias = Literal[
    "text", "code", "number", "size", "time", "state", "filter", "row", "id", "life", "place", "reason", "outcome"
]
_LARGEST: Final = 2**63 - 1


class Order(StrEnum):
    """Which rows of a list come first. Pages follow an index from one of its ends; any other order reads all."""

    NEWEST = "newest"
    OLDEST = "oldest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What a list can be narrowed by, and an action be done to.

    ``name``: in JSON, in addresses, and as an option (``option``, if it is another word; None: see ``rest_of``).
    ``form``: text, an id (a UUID or any text), a time, or one of ``choices``, of which several may be asked for.
    ``meaning``: a sentence without its full stop. ``how``: how the command line takes it. ``column``: the field of
    the store's filter, if it has another name. ``label``, ``hint``, ``options``: of its field in the console.
    ``rest_of``: the filter in whose option this one follows a colon. ``reasons``: its values are codes of reasons.
    ``words``: its names in the line of a search; ``id`` for what a word alone may be.
    """

    name: str
    label: str
    meaning: str
    form: Literal["text", "id", "time", "choices"] = "text"
    option: str | None = ""
    how: str = ""
    column: str = ""
    hint: str = ""
    options: Sequence[str] = ()
    choices: type[Enum] | None = None
    rest_of: str = ""
    reasons: bool = False
    words: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A field of rows. ``label``: what people call it. ``typed``: its name on the command line, if it is another.

    ``meaning``: what programs read of it, if not the label. ``holds``: what JSON has, if ``show`` does not say it.
    ``beside``: a field that is shown with it. ``instead``: fields that are shown where it is empty. ``states``:
    those of which the page of a row shows it. ``above``: that page shows it if it is greater. ``on_page`` False:
    that page shows it at a place of its own. ``in_lists`` False: only that page has it.
    """

    name: str
    label: str
    show: Show = "text"
    typed: str = ""
    meaning: str = ""
    holds: Literal["", "number", "list"] = ""
    beside: str = ""
    instead: Sequence[str] = ()
    states: Sequence[str] = ()
    above: int = -1
    on_page: bool = True
    in_lists: bool = True

    def value(self, row: Mapping[str, Any]) -> Any:
        """What a cell shows of a row."""
        if self.states and row["status"] not in self.states:
            return None
        return next((row[it] for it in (self.name, *self.instead) if row[it] is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """What an action needs besides its rows. ``parameter``: its name in the store. ``hint``: an example.

    A ``duration`` is at most ``most``. ``optional``: the action goes without it. ``endless``: the word for a
    duration without an end.
    """

    name: str
    parameter: str
    label: str
    meaning: str
    hint: str
    form: Literal["text", "duration", "number", "choice"] = "text"
    choices: Sequence[str] = ()
    most: timedelta = timedelta(days=365)
    optional: bool = False
    endless: str = ""

    def read(self, text: str, field: str) -> Any:
        """Return the value of a text. Raises InvalidRequest, which names ``field``."""
        try:
            value = self._value(text)
        except (ValueError, OverflowError) as error:
            raise InvalidRequest(str(error), field=field, hint=f"such as {self.hint}") from None
        return value

    def _value(self, text: str) -> Any:
        if self.form == "number":
            return int(text)
        if self.form == "choice" and text not in self.choices:
            raise ValueError(f"is none of {', '.join(self.choices)}")
        if self.form != "duration":
            return text
        if self.endless and text == self.endless:
            return timedelta.max
        duration = parse_duration(text)
        if not timedelta() < duration <= self.most:
            raise ValueError(f"must be more than nothing and at most {self.most.days} days")
        return duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What an operator may do to rows of a kind. It needs the role `operate`, and the audit log records it.

    ``name``: the method of the store, and the word in commands and addresses. ``about``: what it does. ``past``:
    the result in one word, such as "requeued"; ``reported``: the word after it has been done, if that is
    another. ``done``: what happens to a row, as the console says it. ``states``: those that a filter may find.
    ``fits``: those in which a row may be chosen. ``needs_note``: not without a reason. ``narrowed``: all rows
    are too many, and a filter by errors makes no sense. ``harsh``: it gives a row up. ``undo``: the action that
    takes it back.
    """

    name: str
    label: str
    about: str
    past: str
    done: str = ""
    states: Sequence[str] = ()
    fits: Sequence[str] = ()
    reported: str = ""
    arguments: Sequence[Argument] = ()
    needs_note: bool = False
    narrowed: bool = False
    harsh: bool = False
    undo: str = ""

    def read(self, texts: Mapping[str, str | None], field: str = "{}") -> dict[str, Any]:
        """Return the arguments as the store takes them. ``field``: how an error names one.

        Raises InvalidRequest.
        """
        found: dict[str, Any] = {}
        for it in self.arguments:
            if not (text := (texts.get(it.name) or "").strip()):
                if it.optional:
                    continue
                raise InvalidRequest("is needed", field=field.format(it.name), hint=f"such as {it.hint}")
            found[it.parameter] = it.read(text, field.format(it.name))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What operators list and act on. Every face has its columns, filters and actions, in these words.

    ``path``: in addresses. ``command``: the group of commands. ``title``: of the list. ``one``, ``many``: the
    words for a row and for rows. ``listing``: what the list shows. ``table``: the columns of the command line's
    table after the context; the last is a text.
    """

    path: str
    command: str
    title: str
    one: str
    many: str
    listing: str
    filters: Sequence[Filter] = ()
    columns: Sequence[Column]
    table: Sequence[str]
    actions: Sequence[Action]

    def column(self, name: str) -> Column:
        """The column of a field."""
        return next(it for it in self.columns if it.name == name)

    def action(self, name: str) -> Action:
        """The action of this name. Raises KeyError."""
        return {it.name: it for it in self.actions}[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Listing):
    """Rows of a table, in states. A page of a list, the page of a row, and all that acts on rows are made from it.

    ``whole``: the word for the kind. ``about``, ``empty``: what they are, and where they come from. ``shows``:
    what the page of a row has. ``store``: reads and changes the rows. ``filter``: makes the filter of the
    store. ``id``: the type of ids; `str`: a UUID or any text. ``state``: the type of a state in the store's
    filter. ``usual``: the states of a list in the console and over HTTP if none is asked for; ``urgent``:
    those on the command line. ``order``: the column by which pages follow each other: a number, or a text of
    the pattern ``cursor``. The first two columns of ``table`` are always shown. ``listed``: the cells of the
    console's table. ``text``: the filter and the column of the reason, which is shown under the words
    ``trouble``, but not in the states ``settled``. ``heading``: the column that a row's page has as its
    heading; else the word and the id. ``body``: the column of the payload, of bytes if it is not ``payload``.
    ``group``, ``grouped``: the column by which rows of these states are counted, beside their reason.
    ``began``: the column of the time that ``since`` bounds. ``aged``: the column that says since when a row waits.
    ``unknown``: the error for an id that no row has. ``fits``: whether a context may have any.
    """

    whole: str
    about: str
    empty: str
    nothing: str = ""
    shows: str
    store: type[Operations]
    filter: Callable[..., Any]
    id: type[Any]
    states: Sequence[str]
    state: Callable[[str], Any] = str
    usual: Sequence[str]
    urgent: Sequence[str]
    order: str
    cursor: str = ""
    listed: Sequence[Column | str]
    text: tuple[str, str]
    unknown: Callable[[str], RelayError]
    trouble: str
    began: str
    settled: Sequence[str] = ()
    heading: str = ""
    body: str = "payload"
    group: str = ""
    grouped: Sequence[str] = ()
    aged: str = ""
    fits: Callable[[ContextSettings], bool] = lambda _: True

    @property
    def help(self) -> str:
        """What can be done, in one line."""
        return f"{self.whole}: list, show, {', '.join(it.name for it in self.actions)}."

    @property
    def noun(self) -> str:
        """The word for many, as a name in code and in JSON."""
        return self.many.replace(" ", "_")

    @property
    def cells(self) -> Sequence[Column]:
        """The columns of the console's table."""
        return [self.column(it) if isinstance(it, str) else it for it in self.listed]

    def check(self, action: Action, filters: Container[str], *, every: bool) -> None:
        """Refuse an action on rows that its filters do not narrow. Raises InvalidRequest."""
        if action.narrowed and (every or self.text[0] in filters):
            which = f"{either(action.states)} {self.many}"
            raise InvalidRequest(f"say which {which}: ids, or a filter, and not one by {self.text[0]}")

    def wanted(self, values: Mapping[str, Any], states: Sequence[str], field: str = "{}") -> Any:
        """Return the filter of the rows in these states. ``values``: of filters, by name; None for none.

        ``field``: how an error names a filter. Raises InvalidKey.
        """
        found: dict[str, Any] = {"statuses": [self.state(it) for it in states]}
        for it in self.filters:
            value = values.get(it.name)
            if it.form == "id" and value is not None:
                value = check_id(value, field.format(it.name)).value
            elif it.form == "choices":
                value = tuple(value or ())
            found[it.column or it.name] = value
        return self.filter(**found)

    def key(self, text: str, field: str = "id") -> Any:
        """Read the id of a row. Raises InvalidRequest, and InvalidKey."""
        if self.id is str:
            return check_id(text, field).value
        try:
            key = self.id(text)
        except ValueError:
            raise InvalidRequest("is a UUID" if self.id is UUID else "is a number", field=field) from None
        if isinstance(key, int) and not 1 <= key <= _LARGEST:
            raise InvalidRequest("is out of range", field=field)
        return key


def either(words: Sequence[str], last: str = "or") -> str:
    """Join words: ``a``, ``a or b``, ``a, b or c``; with ``last`` before the last one."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
