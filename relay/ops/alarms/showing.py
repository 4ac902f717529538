"""Alarms as JSON, the same over HTTP and on the command line."""

from __future__ import annotations

from typing import Any, Final

from relay.domain.alarms import Alarm, AlarmsNow

#: So many alarms of each rule.
_MOST: Final = 100


def alarms_json(found: AlarmsNow) -> dict[str, Any]:
    """Return what programs get of the alarms of a moment: the worst of each rule, and how many are left out."""
    shown, left_out = found.first(_MOST)
    return {
        "at": found.at,
        "worst": found.worst,
        "alarms": [_alarm(it) for it in shown],
        "left_out": left_out,
        "unread": dict(found.unread),
    }


def _alarm(it: Alarm) -> dict[str, Any]:
    return {
        "rule": it.rule.name,
        "severity": it.rule.urgency,
        "state": it.state,
        "labels": dict(it.labels),
        "value": it.value,
        "since": it.since,
        "trend": it.trend,
        "text": it.text,
        "action": it.action,
        "runbook": f"docs/how-to/runbook.md#{it.rule.runbook}",
        "links": [{"label": link.label, "path": path, "acts": link.acts} for link, path in it.links],
    }
