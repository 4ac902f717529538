"""Alerts: what somebody must know, in one form for every final failure and every condition that lasts.

A final failure is a row of the table ``alerts``, written in the transaction of the failure. A condition is an
error that `relay health` finds: it is told when it begins, again while it lasts, and when it has ended. No
alert holds a payload: it has ids, codes and reasons.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from relay.domain.disclosure import stack_of
from relay.domain.reasons import code_of
from relay.domain.traceparent import trace_id

#: How many failures an alert names; it counts the rest.
MAX_NAMED: Final = 20
_MAX_REASON_CHARS: Final = 200


class AlertClass(StrEnum):
    """What an alert is about: a kind of final failure, a condition, or a rule of `relay.domain.alarm_rules`."""

    DEAD_LETTER = "dead_letter"
    DEAD_EVENT = "dead_event"
    FAILED_TASK = "failed_task"
    FAILED_RUN = "failed_run"
    MISSED_RUN = "missed_run"
    PARKED_KEY = "parked_key"
    FAILED_CORRECTION = "failed_correction"
    CONDITION = "condition"
    ALARM = "alarm"


class AlertState(StrEnum):
    """Failures are ``raised``. A condition is raised when it begins, then ``lasting``, then ``resolved``."""

    RAISED = "raised"
    LASTING = "lasting"
    RESOLVED = "resolved"


#: What one and what many of a class are called in the text of an alert.
_NAMES: Final = {
    AlertClass.DEAD_LETTER: ("dead letter", "dead letters"),
    AlertClass.DEAD_EVENT: ("dead event", "dead events"),
    AlertClass.FAILED_TASK: ("failed task", "failed tasks"),
    AlertClass.FAILED_RUN: ("failed run", "failed runs"),
    AlertClass.MISSED_RUN: ("missed run", "missed runs"),
    AlertClass.PARKED_KEY: ("parked key", "parked keys"),
    AlertClass.FAILED_CORRECTION: ("failed correction", "failed corrections"),
    AlertClass.CONDITION: ("condition", "conditions"),
    AlertClass.ALARM: ("alarm", "alarms"),
}
#: The section of the runbook for a class.
SECTIONS: Final = {
    AlertClass.DEAD_LETTER: "jetrelaydeadletters",
    AlertClass.DEAD_EVENT: "jetrelayeventsdead",
    AlertClass.FAILED_TASK: "jetrelaytasksfailed",
    AlertClass.FAILED_RUN: "jetrelaycronrunfailed",
    AlertClass.MISSED_RUN: "jetrelaycronrunmissed",
    AlertClass.PARKED_KEY: "jetrelaykeysparked",
    AlertClass.FAILED_CORRECTION: "jetrelaycorrectionfailed",
    AlertClass.CONDITION: "jetrelaycondition",
    AlertClass.ALARM: "jetrelaycondition",  # that of its rule, if it has one
}
#: What begins, lasts and ends, and is told by itself each time.
LASTING: Final = frozenset({AlertClass.CONDITION, AlertClass.ALARM})
#: Classes whose subject may be a subscription.
OF_SUBSCRIPTION: Final = frozenset(
    {AlertClass.DEAD_LETTER, AlertClass.PARKED_KEY, AlertClass.FAILED_CORRECTION, *LASTING}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A row of the table ``alerts``: one failure, or one change of a condition.

    ``subject``: the subscription, task, job, stream or server that it is about. ``about``: ids and more of the row
    that failed. ``told``: a fact was stated. ``open``: it still needs somebody.
    """

    id: int
    kind: AlertClass
    state: AlertState
    subject_type: str
    subject: str
    reason: str
    since: datetime
    about: Mapping[str, Any] = field(default_factory=dict)
    told: bool = False
    open: bool = True

    @property
    def group(self) -> tuple[AlertClass, str, str]:
        """Causes with the same group share an alert."""
        return self.kind, self.subject_type, self.subject

    @property
    def code(self) -> str:
        """The code of the reason."""
        return str(self.about.get("code") or code_of(self.reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """What is told about ``count`` causes of one subject, the first of them at ``since``.

    ``reason_code``: the code of most reasons; ``reasons``: how many have each code. ``runbook``: what to do.
    ``incidents``: the first `MAX_NAMED` failures by their ids. ``ids``: the rows of the causes.
    """

    kind: AlertClass
    state: AlertState
    context: str
    subject_type: str
    subject: str
    reason_code: str
    text: str
    since: datetime
    count: int
    runbook: str
    reasons: Mapping[str, int]
    incidents: Sequence[Mapping[str, Any]]
    ids: Collection[int]

    @property
    def group(self) -> tuple[AlertClass, str, str]:
        """What limits how often an alert is sent: one of each group at a time."""
        return self.kind, self.subject_type, self.subject

    def body(self) -> bytes:
        """The JSON that a webhook gets. The same alert has the same bytes."""
        fields = {
            "type": "relay.alert",
            "class": self.kind.value,
            "state": self.state.value,
            "context": self.context,
            "subject": {"type": self.subject_type, "name": self.subject},
            "reason_code": self.reason_code,
            "reasons": self.reasons,
            "text": self.text,
            "since": self.since.isoformat(),
            "count": self.count,
            "runbook": self.runbook,
            "incidents": self.incidents,
        }
        return json.dumps(fields, default=str).encode()


def alerts_of(context: str, causes: Iterable[Cause], runbook: str) -> list[Alert]:
    """Combine causes into alerts: one for each group and state, the oldest first."""
    groups: dict[tuple[object, ...], list[Cause]] = {}
    for cause in causes:
        # Each change of a condition is told by itself.
        key = (*cause.group, cause.id) if cause.kind in LASTING else cause.group
        groups.setdefault(key, []).append(cause)
    return [_alert(context, its, runbook) for its in groups.values()]


def _alert(context: str, causes: Sequence[Cause], runbook: str) -> Alert:
    first = causes[0]
    reasons = Counter(cause.code for cause in causes)
    usual, _ = reasons.most_common(1)[0]
    subject = first.subject or context
    return Alert(
        kind=first.kind,
        state=first.state,
        context=context,
        subject_type=first.subject_type,
        subject=subject,
        reason_code=usual,
        text=_text(context, subject, causes, next(it for it in causes if it.code == usual)),
        since=min(cause.since for cause in causes),
        count=len(causes),
        runbook=f"{runbook}#{usual.lower() if first.kind is AlertClass.ALARM else SECTIONS[first.kind]}",
        reasons=dict(reasons.most_common(MAX_NAMED)),
        incidents=[_shown(cause) for cause in causes[:MAX_NAMED]] if first.kind not in LASTING else [],
        ids=[cause.id for cause in causes],
    )


def _text(context: str, subject: str, causes: Sequence[Cause], usual: Cause) -> str:
    """One line for people. Chat services show it."""
    reason = stack_of(usual.reason)[0][:_MAX_REASON_CHARS]
    if usual.kind is AlertClass.ALARM:
        return f"{usual.state.value}: {reason}"
    if usual.kind is AlertClass.CONDITION:
        return f"{context}: {usual.state.value}: {usual.code.upper()}, {usual.subject_type} {subject}: {reason}"
    one, many = _NAMES[usual.kind]
    count, of = len(causes), f"{usual.subject_type} {subject}"
    what = f"{one} {usual.about.get('id', '')}".strip() if count == 1 else f"{count} {many}"
    return f"{context}: {what}, {of}: {reason or usual.code}"


def _shown(cause: Cause) -> dict[str, Any]:
    """What an alert says of one failure."""
    about = {name: value for name, value in cause.about.items() if name not in {"code", "traceparent"}}
    reason = stack_of(cause.reason)[0]
    return {
        **about,
        "reason": reason,
        "reason_code": cause.code,
        "trace_id": trace_id(cause.about.get("traceparent")),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """An error or alarm that lasts. ``place``: which server or check showed it; only that can show its end.

    ``value``: of an alarm, what its rule judged.
    """

    code: str
    place: str
    subject_type: str
    subject: str
    reason: str
    kind: AlertClass = AlertClass.CONDITION
    value: float | None = None
