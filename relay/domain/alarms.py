"""Alarms: rules about what somebody must look at now, and what they say of a value.

A rule is a value. Two judges use the same one: Prometheus, by the expression that a rule writes for it
(`relay.ops.alarms.prometheus`), and `relay ops`, which compares values from the tables (`judge`). So a threshold
or a duration is in one place. All rules are in `relay.domain.alarm_rules`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Literal, TypeAlias
from urllib.parse import quote

from relay.domain.moments import before

#: Stands for a subscription that is not configured, as in metrics.
OTHER: Final = "other"
_NOTHING: Final = timedelta()


class Urgency(StrEnum):
    """``page``: events are delayed or in danger, so look now. ``ticket``: it can wait."""

    PAGE = "page"
    TICKET = "ticket"


class AlarmState(StrEnum):
    """``pending``: the rule holds, but not yet for as long as it must."""

    FIRING = "firing"
    PENDING = "pending"


class Trend(StrEnum):
    """How the value of an alarm has changed since the looks before."""

    GROWING = "growing"
    STEADY = "steady"
    FALLING = "falling"


# --- what is measured: the expression that Prometheus evaluates ---


@dataclass(frozen=True, slots=True)
class Highest:
    """The highest value of a gauge, by ``labels``. ``unless``: a gauge of what is paused, by the same."""

    metric: str
    labels: tuple[str, ...]
    unless: str = ""

    def expression(self, over: float) -> str:
        """Write it for Prometheus."""
        by = ", ".join(self.labels)
        found = f"max by ({by}) ({self.metric}) > {over:g}"
        return f"{found}\nunless on ({by}) max by ({by}) ({self.unless}) > 0" if self.unless else found


@dataclass(frozen=True, slots=True)
class Grown:
    """By how much a counter grew ``within`` a time. ``only``: a matcher of labels."""

    metric: str
    labels: tuple[str, ...]
    within: timedelta
    only: str = ""

    def expression(self, over: float) -> str:
        """Write it for Prometheus."""
        grown = f"increase({self.metric}{self.only}[{short(self.within)}])"
        return f"sum by ({', '.join(self.labels)}) ({grown}) > {over:g}"


@dataclass(frozen=True, slots=True)
class Frequency:
    """How often something happens."""

    metric: str
    labels: tuple[str, ...]
    within: timedelta

    def expression(self, over: float) -> str:
        """Write it for Prometheus."""
        return f"sum by ({', '.join(self.labels)}) (rate({self.metric}[{short(self.within)}])) > {over:g}"


@dataclass(frozen=True, slots=True)
class Share:
    """Which share of a whole something has."""

    part: str
    whole: str
    labels: tuple[str, ...]
    within: timedelta

    def expression(self, over: float) -> str:
        """Write it for Prometheus."""
        by, time = f"sum by ({', '.join(self.labels)})", short(self.within)
        return f"{by} (rate({self.part}[{time}]))\n> {over:g} * {by} (rate({self.whole}[{time}]))"


@dataclass(frozen=True, slots=True)
class Silence:
    """For how long a time stamp has not been renewed."""

    metric: str
    labels: tuple[str, ...]

    def expression(self, over: float) -> str:
        """Write it for Prometheus."""
        return f"time() - max by ({', '.join(self.labels)}) ({self.metric}) > {over:g}"


@dataclass(frozen=True, slots=True)
class Zero:
    """Whether the highest value of a gauge is 0: ``over`` has no meaning here."""

    metric: str
    labels: tuple[str, ...]

    def expression(self, _over: float) -> str:
        """Write it for Prometheus."""
        return f"max by ({', '.join(self.labels)}) ({self.metric}) == 0"


@dataclass(frozen=True, slots=True)
class Given:
    """An expression about Prometheus itself, with the labels that it leaves."""

    text: str
    labels: tuple[str, ...] = ()

    def expression(self, _over: float) -> str:
        """Write it for Prometheus."""
        return self.text


Measure: TypeAlias = Highest | Grown | Frequency | Share | Silence | Zero | Given
Unit: TypeAlias = Literal["count", "rough", "seconds"]


def short(time: timedelta) -> str:
    """Write a duration as Prometheus does: ``90s``, ``15m``, ``2h``."""
    seconds = int(time.total_seconds())
    size, unit = next((it for it in ((3600, "h"), (60, "m")) if seconds and seconds % it[0] == 0), (1, "s"))
    return f"{seconds // size}{unit}"


# --- rules ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A page of the console, or a question before an action (``acts``). ``path`` has labels in braces."""

    label: str
    path: str
    acts: bool = False

    def to(self, labels: Mapping[str, str]) -> str:
        """The address for these labels. A label that names nothing that has rows is left out of the query."""
        path, _, query = self.path.format(**{name: quote(value) for name, value in labels.items()}).partition("?")
        pairs = [it for it in query.split("&") if not it.endswith(("=", f"={OTHER}"))]
        return f"{path}?{'&'.join(pairs)}" if query and pairs else path


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule: it holds while its measure is over ``over``, and fires when it has held for ``lasting``.

    ``group``: its section of the runbook. ``says``: a sentence, with labels in braces, and ``{value}`` in its
    ``unit``. ``action``: what to type. ``links``: where it is seen and mended. ``word``: for the figure that it is
    about, at the ``station`` of the overview. ``pauses``: the labels that name what somebody may have paused on
    purpose; then it does not hold. ``elsewhere``: why only Prometheus can judge it; "" if `relay ops` does, too.
    """

    name: str
    group: str
    urgency: Urgency
    measure: Measure
    over: float = 0
    lasting: timedelta = _NOTHING
    says: str
    unit: Unit = "count"
    action: str = ""
    links: Sequence[Link] = ()
    word: str = ""
    station: str = ""
    pauses: Collection[str] = ()
    elsewhere: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels that its alarms have."""
        return self.measure.labels

    @property
    def runbook(self) -> str:
        """The section of the runbook."""
        return self.name.lower()

    def holds(self, value: float) -> bool:
        """Whether a value is one that the rule is about."""
        return value == 0 if isinstance(self.measure, Zero) else value > self.over


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A value that a rule judges. ``labels``: what it is of.

    ``since``: for how many seconds the rule has held, if the value itself says so. ``detail``: what it is about.
    """

    rule: str
    labels: Mapping[str, str]
    value: float
    since: float | None = None
    detail: str = ""

    @property
    def key(self) -> AlarmKey:
        """What makes it the same reading in the next look."""
        return self.rule, tuple(self.labels.items())


#: An alarm by its rule and its labels.
AlarmKey: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedPart:
    """What somebody has paused on purpose: the ``kind`` is the name of a label, such as subscription.

    Publishing and queues of tasks are no labels: any of them keeps the rules of its context quiet that name it.
    """

    context: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A rule that holds. ``since``: from when on. ``trend`` None: there was no look before."""

    rule: Rule
    labels: Mapping[str, str]
    value: float
    since: datetime
    state: AlarmState
    trend: Trend | None = None
    detail: str = ""

    @property
    def context(self) -> str:
        """The context that it is about; "" if it is about all."""
        return self.labels.get("context", "")

    @property
    def subject(self) -> str:
        """What of the context it is about; "" if it is about the whole context."""
        return ", ".join(value for name, value in self.labels.items() if name != "context")

    @property
    def text(self) -> str:
        """What is wrong, in one sentence."""
        named = {**self.labels, "context": self.context or "all contexts"}
        said = self.rule.says.format(**named, value=_shown(self.value, self.rule.unit))
        return f"{said}: {self.detail}" if self.detail else said

    @property
    def action(self) -> str:
        """What to type."""
        return self.rule.action.format(**self.labels)

    @property
    def links(self) -> Sequence[tuple[Link, str]]:
        """Where it is seen and mended, with the addresses."""
        return [(it, it.to(self.labels)) for it in self.rule.links]

    @property
    def rank(self) -> tuple[object, ...]:
        """Its place in a list: what fires first, then what is urgent, then what has lasted for longest."""
        state, urgency = [*AlarmState].index(self.state), [*Urgency].index(self.rule.urgency)
        return state, urgency, self.since, self.rule.name, self.context, self.subject


def _shown(value: float, unit: Unit) -> str:
    if unit != "seconds":
        return f"{value:,.0f}"
    size, name = next((it for it in ((86_400, "d"), (3_600, "h"), (60, "min")) if value >= it[0]), (1, "s"))
    return f"{value / size:.0f} {name}"


def merged(rules: Mapping[str, Rule], readings: Iterable[Reading]) -> list[Reading]:
    """Join readings of the same rule and labels: counts are added, of others the worst counts."""
    found: dict[AlarmKey, Reading] = {}
    for it in readings:
        other = found.get(it.key)
        if other is None:
            found[it.key] = it
            continue
        worst = max(other, it, key=lambda one: one.value)
        value = other.value + it.value if rules[it.rule].unit == "count" else worst.value
        since = None if None in (it.since, other.since) else max(it.since or 0.0, other.since or 0.0)
        found[it.key] = replace(worst, value=value, since=since)
    return [*found.values()]


def judge(
    rules: Mapping[str, Rule],
    readings: Iterable[Reading],
    known: Mapping[AlarmKey, datetime],
    now: datetime,
    paused: Collection[PausedPart] = (),
) -> list[Alarm]:
    """Return the alarms, the worst first. ``known``: since when rules have held, as others have seen."""
    found = []
    for it in merged(rules, readings):
        rule = rules[it.rule]
        if not rule.holds(it.value) or _on_purpose(rule, it.labels, paused):
            continue
        begins = [now if it.since is None else before(now, max(0.0, it.since))]
        begins += [known[it.key]] if it.key in known else []
        since = min(begins)
        state = AlarmState.FIRING if now - since >= rule.lasting else AlarmState.PENDING
        found.append(
            Alarm(rule=rule, labels=it.labels, value=it.value, since=since, state=state, detail=it.detail)
        )
    return sorted(found, key=lambda alarm: alarm.rank)


def _on_purpose(rule: Rule, labels: Mapping[str, str], paused: Collection[PausedPart]) -> bool:
    """Whether somebody has paused what the rule would complain of."""
    mine = [it for it in paused if it.context == labels.get("context")]
    return any(it.kind in rule.pauses and labels.get(it.kind, it.name) == it.name for it in mine)


def trend(before: float, now: float) -> Trend:
    """Compare two values. What differs by less than a hundredth is steady."""
    if abs(now - before) <= abs(before) / 100:
        return Trend.STEADY
    return Trend.GROWING if now > before else Trend.FALLING


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmsNow:
    """All alarms of a moment, ``at`` which they were looked for, the worst first.

    ``unread``: why contexts could not be read, by their names.
    """

    at: datetime
    alarms: Sequence[Alarm]
    unread: Mapping[str, str] = field(default_factory=dict)

    @property
    def firing(self) -> Sequence[Alarm]:
        """Those that have lasted for long enough."""
        return [it for it in self.alarms if it.state is AlarmState.FIRING]

    @property
    def worst(self) -> Urgency | None:
        """The urgency of the worst one that fires."""
        return next((it.rule.urgency for it in self.firing), None)

    def first(self, most: int) -> tuple[Sequence[Alarm], Mapping[str, int]]:
        """Return at most so many of each rule, and how many of a rule are left out."""
        seen: Counter[str] = Counter()
        shown = []
        for it in self.alarms:
            seen[it.rule.name] += 1
            if seen[it.rule.name] <= most:
                shown.append(it)
        return shown, {name: count - most for name, count in seen.items() if count > most}
