"""What the API takes and gives, as its OpenAPI document describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, Generic, Literal, TypeAlias, TypeVar
from uuid import UUID

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    create_model,
    model_validator,
)

from relay.domain.alarms import AlarmState, Trend, Urgency
from relay.domain.moments import AGE, absolute
from relay.ops.kinds.model import Action, Filter, Kind, Order, either

Key = TypeVar("Key")
FilterModel = TypeVar("FilterModel", bound=BaseModel)

_STRICT = ConfigDict(extra="forbid", hide_input_in_errors=True)
#: Text that PostgreSQL can hold, as filters have it.
Text: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=300, pattern=r"^[^\x00]+$")]
Number: TypeAlias = Annotated[int, Field(ge=1, le=2**63 - 1)]
#: A time, or an age such as ``6h``.
Moment: TypeAlias = Annotated[
    AwareDatetime,
    BeforeValidator(lambda it: absolute(it) if isinstance(it, str) else it),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "format": "date-time"},
                {"type": "string", "pattern": f"^{AGE.pattern}$"},
            ],
            "examples": ["6h", "2026-01-31T03:00:00Z"],
        }
    ),
]
#: The types of ids in addresses and in JSON, by those of a kind.
KEYS: Final[dict[type[Any], Any]] = {str: Text, int: Number, UUID: UUID}


# --- what a list is asked for, and what an action is done to ---


class _Looked(BaseModel):
    """How a list is looked at."""

    limit: Annotated[int, Field(ge=1, le=500, description="How many rows a page has.")] = 50
    thorough: Annotated[
        bool, Field(description="Look at all rows, which may take seconds, not only at the newest of each state.")
    ] = False
    order: Annotated[Order, Field(description="Whether the newest rows come first, or the oldest.")] = Order.NEWEST


class _Paged(_Looked):
    """``before``: ``next`` of the page above."""

    before: Number | None = None


class Selection(BaseModel, Generic[Key, FilterModel]):
    """What an action is done to: ``ids``, what a ``filter`` finds, ``all``, or a ``selection``. And why: ``note``.

    Nothing is done if a filter finds more than ``limit``. ``dry_run``: count, and change nothing; the answer has a
    ``selection``: given back, the action is done to the rows that were counted, once, and to no others.
    """

    model_config = _STRICT

    ids: Annotated[list[Key], Field(min_length=1, max_length=10_000)] | None = None
    filter: FilterModel | None = None
    all: bool = False
    selection: UUID | None = None
    limit: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    note: Text | None = None
    dry_run: bool = False

    @model_validator(mode="after")
    def _one_way(self) -> Selection[Key, FilterModel]:
        filtered = self.filter is not None and bool(self.filter.model_dump(exclude_defaults=True))
        if (self.ids is not None) + filtered + self.all + (self.selection is not None) != 1:
            raise ValueError("say which, in one way: ids, a filter that is not empty, all, or a selection")
        return self


@dataclass(frozen=True, slots=True)
class KindModels:
    """The models of a kind. ``page``: what a list is asked for. ``selection``: what an action is done to."""

    page: type[BaseModel]
    selection: type[Selection[Any, Any]]
    name: str

    def action(self, action: Action) -> type[Selection[Any, Any]]:
        """What an action is done to, with its arguments."""
        if not action.arguments:
            return self.selection
        fields: dict[str, Any] = {
            it.name: (
                Literal[it.choices] if it.choices else int if it.form == "number" else Text,
                Field("" if it.optional else ..., description=f"{it.meaning}.", examples=[it.hint]),
            )
            for it in action.arguments
        }
        name = f"{self.name}To{action.name.capitalize()}"
        model: type[Selection[Any, Any]] = _made(name, __base__=self.selection, **fields)
        return model


def _made(name: str, **what: Any) -> Any:
    return create_model(name, **{"__doc__": Selection.__doc__, **what})


@cache
def models_of(kind: Kind) -> KindModels:
    """Make the models of a kind from its filters and states."""
    name = "".join(it.capitalize() for it in kind.many.split())
    narrowed: Any = filter_model(f"{name}Filter", f"Which {kind.many}.", kind.filters)
    state: Any = kind.state if isinstance(kind.state, type(Enum)) else Literal[tuple(kind.states)]
    some = either(kind.usual) if len(kind.usual) < len(kind.states) else "all"
    paging: Any = _Paged
    if kind.cursor:
        before: Any = (Annotated[str, StringConstraints(pattern=kind.cursor)] | None, None)
        paging = _made(f"{name}Paged", __base__=_Looked, before=before)
    page = _made(
        f"{name}Page",
        __base__=(narrowed, paging),
        __doc__=f"A page of {kind.many}. ``status``: {some} if not given. ``before``: ``next`` of the page above.",
        status=(list[state], []),
    )
    key: Any = KEYS[kind.id]
    chosen: Any = Selection[key, narrowed]
    selection: Any = _made(f"{name}Selection", __base__=chosen, __doc__=Selection.__doc__)
    return KindModels(page, selection, name)


def filter_model(name: str, doc: str, filters: Sequence[Filter]) -> type[BaseModel]:
    """Make the model of filters. ``doc``: of the model."""
    fields: Any = dict(map(_field, filters))
    model: type[BaseModel] = _made(name, __config__=_STRICT, __doc__=doc, **fields)
    return model


def _field(it: Filter) -> tuple[str, Any]:
    types: dict[str, Any] = {"text": Text | None, "id": Text | None, "time": Moment | None}
    many: Any = it.choices
    values: Any = list[many] if many else types[it.form]
    return it.name, (values, Field(default=[] if many else None, description=f"{it.meaning}."))


def values_of(kind: Kind, asked: BaseModel) -> dict[str, Any]:
    """The values of the filters of a kind in a model, by name."""
    return {it.name: getattr(asked, it.name) for it in kind.filters}


def wanted_of(kind: Kind, filters: Mapping[str, Any], states: Sequence[str]) -> Any:
    """The filter of the rows in these states. ``filters``: as JSON, by name. Raises InvalidKey."""
    return kind.wanted(values_of(kind, models_of(kind).page.model_validate(filters)), states)


# --- answers ---


class Problem(BaseModel):
    """Why something was not done.

    ``code``: it is stable. ``message``: for people. ``field``: what is wrong. ``hint``: what to do next.
    """

    code: str
    message: str
    field: str | None = None
    hint: str | None = None


class ProblemOut(BaseModel):
    """The body of every error. ``error``: what it is."""

    error: Problem


class ReachOut(BaseModel):
    """The times between which rows were looked at. ``since``: null if all older were, too. ``until``: likewise."""

    since: AwareDatetime | None
    until: AwareDatetime | None


class PageOut(BaseModel):
    """A page, the newest first, or the oldest. ``next``: ``before`` of the next page, if there is one.

    ``total``: how many the filter finds in all. ``exact``: whether it is all of them, or at least so many.
    ``reach``: between which times rows were looked at, by their state, if not all were; beyond them more may fit.
    ``unconfirmed``: how many unconfirmed dead letters fit besides; ``class=unconfirmed`` lists them.
    """

    items: list[Any]
    total: int
    exact: bool
    reach: dict[str, ReachOut]
    next: int | str | None
    unconfirmed: int = 0


class AlarmLinkOut(BaseModel):
    """A page of the console where an alarm is seen or mended. ``label``: what it is called. ``path``: its address.

    ``acts``: it asks before an action.
    """

    label: str
    path: str
    acts: bool


class AlarmOut(BaseModel):
    """A rule that holds. ``rule``: its name, as in Prometheus. ``severity``: how soon somebody must look.

    ``state``: pending until it has held for as long as the rule says; then it fires. ``labels``: what it is about.
    ``value``: what the rule judged. ``since``: from when on it has held. ``trend``: how the value has changed
    since earlier looks, null at the first one. ``text``: what is wrong. ``action``: what to type. ``runbook``: the
    section that explains it. ``links``: where it is seen and mended.
    """

    rule: str
    severity: Urgency
    state: AlarmState
    labels: dict[str, str]
    value: float
    since: AwareDatetime
    trend: Trend | None
    text: str
    action: str
    runbook: str
    links: list[AlarmLinkOut]


class AlarmsOut(BaseModel):
    """All alarms of a moment. ``at``: when they were looked for. ``worst``: the severity of the worst that fires.

    ``alarms``: the worst first, at most a hundred of a rule. ``left_out``: how many more, by rule. ``unread``: why
    contexts could not be read, by their names.
    """

    at: AwareDatetime
    worst: Urgency | None
    alarms: list[AlarmOut]
    left_out: dict[str, int]
    unread: dict[str, str]


class RefusedOut(BaseModel):
    """One thing that was not done. ``id``: which. ``error``: why."""

    id: str
    error: Problem


class OutcomeOut(BaseModel):
    """What became of each id. ``action``: what was asked. ``dry_run``: whether it was only counted.

    ``count``: how many were done, or would be. ``done``: their ids. ``refused``: the others, and why.
    ``deed``: the number of the act in the audit log, to look at and to undo; null if nothing was done. ``left``:
    how many fit the filter besides those that were counted. ``gone``: how many of these did not fit any more.
    ``selection``: of a dry run, to be given back with the act.
    """

    action: str
    dry_run: bool
    count: int
    done: list[str]
    refused: list[RefusedOut]
    deed: int | None = None
    left: int = 0
    gone: int = 0
    selection: UUID | None = None


class DeedOut(BaseModel):
    """One act of the audit log. ``id``: its number. ``at``: when. ``actor``: who. ``action``: what was done.

    ``ids``: the first hundred of its rows. ``count``: how many rows it changed. ``undo``: the action that takes it
    back; null if there is none. ``undoes``: the act that it took back. ``undone_by``: the act that took it back.
    ``refusals``: how many rows were refused. ``refused``: the first hundred of them. ``left``: how many came after
    they were counted. ``gone``: how many did not fit any more. ``subject``: the person whose keys it destroyed.
    """

    id: int
    at: AwareDatetime
    actor: str
    action: str
    note: str | None
    ids: list[str]
    count: int
    undo: str | None
    undoes: int | None
    undone_by: int | None
    refusals: int
    refused: list[RefusedOut]
    left: int
    gone: int
    subject: str | None = None
