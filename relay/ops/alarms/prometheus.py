"""The rules in the words of Prometheus: ``deploy/prometheus/alerts.yaml``, and ``relay alarms --prometheus``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from textwrap import indent
from typing import Final

from relay.domain.alarm_rules import RULES
from relay.domain.alarms import Rule, short

_HEAD: Final = """\
# Alert rules for Prometheus, made by `relay alarms --prometheus`; docs/how-to/metrics.md explains the metrics. Two
# schedulers show the same context, and only the one that leads its backlogs, hence `max by`. Thresholds are a
# beginning: set them to what you promise.
groups:
"""
_VALUES: Final = {
    "count": "{{ $value }}",
    "rough": "{{ $value | humanize }}",
    "seconds": "{{ $value | humanizeDuration }}",
}


def rules_file(rules: Iterable[Rule] = RULES.values()) -> str:
    """Return the file of rules."""
    parts = [_HEAD]
    for name, those in groupby(rules, key=lambda it: it.group):
        parts.append(f"  - name: jetrelay-{name}\n    rules:\n")
        parts += [indent("".join(f"{line}\n" for line in _rule(it)), "      ") for it in those]
        parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"


def _rule(rule: Rule) -> Iterator[str]:
    first, *more = rule.measure.expression(rule.over).splitlines()
    yield f"- alert: {rule.name}"
    yield f"  expr: {'>-' if more else first}"
    yield from (f"    {it}" for it in (first, *more) if more)
    if rule.lasting:
        yield f"  for: {short(rule.lasting)}"
    yield f"  labels: {{severity: {rule.urgency}}}"
    yield "  annotations:"
    yield f'    summary: "{_worded(rule.says, rule)}"'
    yield f"    runbook: docs/how-to/runbook.md#{rule.runbook}"
    if rule.action:
        yield f'    action: "{_worded(rule.action, rule)}"'


def _worded(text: str, rule: Rule) -> str:
    """Write labels and the value as Prometheus fills them in."""

    def filled(found: re.Match[str]) -> str:
        return _VALUES[rule.unit] if found[1] == "value" else f"{{{{ $labels.{found[1]} }}}}"

    return re.sub(r"{(\w+)}", filled, text)
