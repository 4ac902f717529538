"""What a run showed, for people: one HTML file without anything from outside, and a table for the terminal."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Final

from chaos.evidence import Evidence
from chaos.history import Sample
from chaos.judgement import Figure, Judgement
from chaos.recovery import percentile, recoveries

_STYLE: Final = Path(__file__).with_suffix(".css")
_TIMELINE_NOTE: Final = (
    "Events per second, and the most events that waited, in each part of the run."
    " A dash: the database did not answer."
)
#: Rows of the timeline at most.
_INTERVALS: Final = 60
_RECOVERY_NOTE: Final = (
    "Seconds from the end of a fault until events were published, fetched and handled again. If others came in"
    " between, the longest time without any of them."
)


_NUMBER: Final = ' class="number"'


@dataclass(frozen=True, slots=True)
class Meta:
    """What identifies a run. ``command`` repeats it; ``facts`` are its other settings, shown as they are."""

    seed: int
    command: str
    facts: Mapping[str, str] = field(default_factory=dict)


def summary(judgements: Sequence[Judgement]) -> str:
    """The verdict as plain text: a line for each judgement, and under it what broke it."""
    width = max((len(judgement.name) for judgement in judgements), default=0)
    lines = [_headline(judgements)]
    for judgement in judgements:
        figures = ", ".join(f"{name} {_shown(value)}" for name, value in judgement.figures.items())
        lines.append(f"{judgement.number}  {judgement.name:<{width}}  {judgement.verdict:<6}  {figures}".rstrip())
        lines += [f"     - {sentence}" for sentence in _sentences(judgement)]
    return "\n".join(lines)


def render(evidence: Evidence, judgements: Sequence[Judgement], meta: Meta) -> str:
    """The report as one HTML page."""
    title = f"Chaos run, seed {meta.seed}"
    sections = [
        f"<h1>{escape(title)}</h1>",
        _verdict(evidence, judgements),
        _section("Promises", _promises(judgements)),
        _section("Timeline", _timeline(evidence)),
        _section("Faults and recovery", _faults(evidence)),
        _section("Workload", _workload(evidence)),
        _section("Repeat it", _repeat(meta)),
    ]
    body = "\n".join(sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}: {escape(_headline(judgements))}</title>"
        f"<style>\n{_STYLE.read_text()}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


# --- the verdict --------------------------------------------------------------------------------


def _headline(judgements: Sequence[Judgement]) -> str:
    broken = [judgement for judgement in judgements if not judgement.kept]
    if not judgements or any(judgement.number == 0 for judgement in broken):
        return "This run proves nothing"
    if not broken:
        return "Every promise was kept"
    numbers = ", ".join(str(judgement.number) for judgement in broken)
    return f"Promise {numbers} was broken" if len(broken) == 1 else f"Promises {numbers} were broken"


def _verdict(evidence: Evidence, judgements: Sequence[Judgement]) -> str:
    kept = bool(judgements) and all(judgement.kept for judgement in judgements)
    words = f"<p><strong>{escape(_headline(judgements))}</strong></p><p>{escape(_extent(evidence))}</p>"
    return f'<div class="verdict {"good" if kept else "bad"}">{words}</div>'


def _extent(evidence: Evidence) -> str:
    """How large the run was, in a sentence."""
    faults, kinds = len(evidence.faults), len({fault.kind for fault in evidence.faults})
    text = (
        f"{len(evidence.business):,} events committed under {faults:,} faults of {kinds} kind{'s' * (kinds != 1)}"
    )
    times = [sample.at for sample in evidence.samples]
    if not times:
        return f"{text}."
    began = datetime.fromtimestamp(min(times), UTC)
    return f"{text} in {clock(max(times) - min(times))}, begun {began:%Y-%m-%d %H:%M} UTC."


def _sentences(judgement: Judgement) -> list[str]:
    unnamed = judgement.total - len(judgement.violations)
    return [*judgement.violations, *([f"and {unnamed:,} more"] if unnamed else [])]


# --- sections -----------------------------------------------------------------------------------


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>"


def _promises(judgements: Sequence[Judgement]) -> str:
    rows = "".join(_promise(judgement) for judgement in judgements)
    head = '<thead><tr><th scope="col">Promise</th><th scope="col">Verdict</th></tr></thead>'
    return f'<table class="promises full">{head}<tbody>{rows}</tbody></table>'


def _promise(judgement: Judgement) -> str:
    style, mark = ("kept", "✓") if judgement.kept else ("broken", "✗")
    number = f"{judgement.number}. " if judgement.number else ""
    figures = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(_shown(value))}</dd></div>"
        for name, value in judgement.figures.items()
    )
    listed = "".join(f"<li>{escape(sentence)}</li>" for sentence in _sentences(judgement))
    violations = f'<ul class="violations">{listed}</ul>' if listed else ""
    details = f'<dl class="figures">{figures}</dl>{violations}'
    return (
        f'<tr><th scope="row">{number}{escape(judgement.name)}</th>'
        f'<td class="{style}">{mark} {judgement.verdict}</td></tr>'
        f'<tr class="details"><td colspan="2">{details}</td></tr>\n'
    )


def _timeline(evidence: Evidence) -> str:
    samples = sorted(evidence.samples, key=lambda sample: sample.at)
    if len(samples) < 2:
        return '<p class="note">Nothing was sampled.</p>'
    heads = ("Since", "Published", "Handled", "Outbox", "Inbox", "Faults that began")
    table = _table("", heads, _intervals(evidence, samples))
    return f'<p class="note">{escape(_TIMELINE_NOTE)}</p><div class="timeline">{table}</div>'


def _intervals(evidence: Evidence, samples: Sequence[Sample]) -> list[Sequence[Figure]]:
    size = math.ceil((len(samples) - 1) / _INTERVALS)
    rows: list[Sequence[Figure]] = []
    for first in range(0, len(samples) - 1, size):
        part = samples[first : first + size + 1]
        last = first + size >= len(samples) - 1
        begin, end = part[0].at if rows else 0.0, math.inf if last else part[-1].at
        faults = [f"{fault.kind} {fault.target}" for fault in evidence.faults if begin <= fault.began < end]
        rows.append(
            (
                clock(part[0].at - samples[0].at),
                _rate(part, lambda sample: sample.published),
                _rate(part, lambda sample: sample.handled),
                _most(sample.outbox for sample in part),
                _most(sample.inbox for sample in part),
                ", ".join(faults),
            )
        )
    return rows


def _rate(samples: Sequence[Sample], count: Callable[[Sample], int | None]) -> str:
    """Growth per second between the first and the last known count. A falling count gives 0."""
    known = [(sample.at, value) for sample in samples if (value := count(sample)) is not None]
    if len(known) < 2:
        return "-"
    (begin, before), (end, now) = known[0], known[-1]
    return f"{max(0, now - before) / (end - begin):,.0f}"


def _most(counts: Iterable[int | None]) -> Figure:
    return max((count for count in counts if count is not None), default="-")


def clock(seconds: float) -> str:
    """Format a length of time as minutes and seconds, with hours if there are any."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _faults(evidence: Evidence) -> str:
    if not evidence.faults:
        return '<p class="note">No fault was injected.</p>'
    times: defaultdict[str, list[float]] = defaultdict(list)
    for recovery in recoveries(evidence):
        times[recovery.fault.kind] += [] if recovery.seconds is None else [recovery.seconds]
    counts = Counter(fault.kind for fault in evidence.faults)
    rows = [(kind, counts[kind], len(times[kind]), *_spread(times[kind])) for kind in sorted(counts)]
    every = [seconds for found in times.values() for seconds in found]
    rows.append(("all", len(evidence.faults), len(every), *_spread(every)))
    heads = ("Kind", "Faults", "Measured", "Median", "Slowest")
    return f'<p class="note">{escape(_RECOVERY_NOTE)}</p>' + _table("", heads, rows)


def _spread(times: list[float]) -> tuple[str, str]:
    if not times:
        return ("-", "-")
    return (f"{percentile(times, 0.5):.1f} s", f"{max(times):.1f} s")


def _workload(evidence: Evidence) -> str:
    events = (event for operation in evidence.operations for event in operation.events)
    tables = (
        _crossed("Operations", ((operation.kind, operation.outcome) for operation in evidence.operations)),
        _crossed("Events by plan", ((event.plan, event.source) for event in events)),
        _crossed("Handler calls by answer", ((call.answer, call.source) for call in evidence.calls)),
    )
    return f'<div class="tables">{"".join(tables)}</div>'


def _crossed(caption: str, pairs: Iterable[tuple[str, str]]) -> str:
    """Counts of pairs: the first by rows, the second by columns."""
    counts = Counter((str(row), str(column)) for row, column in pairs)
    columns = sorted({column for _, column in counts})
    names = sorted({row for row, _ in counts})
    rows: list[Sequence[Figure]] = [(row, *(counts[row, column] for column in columns)) for row in names]
    return _table(caption, ("", *columns), rows) if rows else ""


def _repeat(meta: Meta) -> str:
    rows = [("seed", str(meta.seed)), *meta.facts.items()]
    return f'<pre tabindex="0">{escape(meta.command)}</pre>\n' + _table("", ("Setting", "Value"), rows)


# --- pieces -------------------------------------------------------------------------------------


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Figure]]) -> str:
    named = f"<caption>{escape(caption)}</caption>" if caption else ""
    top = "".join(_head(head, first=number == 0) for number, head in enumerate(heads))
    body = "".join(f"<tr>{_row(row)}</tr>" for row in rows)
    table = f"<table>{named}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _head(text: str, *, first: bool) -> str:
    if not text:
        return "<td></td>"
    return f'<th scope="col"{"" if first else _NUMBER}>{escape(text)}</th>'


def _row(row: Sequence[Figure]) -> str:
    first, *others = row
    cells = "".join(f"<td{_NUMBER}>{escape(_shown(value))}</td>" for value in others)
    return f'<th scope="row">{escape(_shown(first))}</th>{cells}'


def _shown(value: Figure) -> str:
    return value if isinstance(value, str) else f"{value:,}"
