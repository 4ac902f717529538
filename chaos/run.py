"""One run from beginning to end: rig, workload and faults; then rest, the final state, the verdict, the report."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos import tables
from chaos.checker import judge
from chaos.collect import collect, left, settle
from chaos.evidence import read
from chaos.faults import FAULTS
from chaos.history import Fault, History, Record, Sample
from chaos.judgement import Judgement
from chaos.nemesis import Nemesis
from chaos.report import Meta, render
from chaos.rig import Rig
from chaos.sampler import Sampler
from chaos.topologies import RIGS
from chaos.workload import Workload

REPORT: Final = "report.html"
#: A line about the counts for every so many samples, which are a second apart.
_SAY_EVERY: Final = 10
_NEED_DISKS: Final = {name for name in FAULTS if name.endswith("-disk-full")}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a run is.

    ``every``, ``hold`` and ``hanging``: see `nemesis.Nemesis`. ``rate``: events per second at most. ``batch``:
    events of a large transaction. ``max_attempts``: of a subscription. ``rest``: for how long the system may take
    to come to rest after the last fault, in seconds. ``environment``: further variables of workers and schedulers.
    """

    directory: Path
    seconds: float
    seed: int
    rate: float = 100.0
    workers: int = 2
    batch: int = 100
    liveness: bool = False
    topology: str = "single"
    every: tuple[float, float] = (3.0, 8.0)
    hold: tuple[float, float] = (5.0, 30.0)
    kinds: Collection[str] | None = None
    hanging: int = 60
    max_attempts: int = 60
    rest: float = 300.0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a run, and the page that shows it."""

    judgements: Sequence[Judgement]
    report: Path

    @property
    def kept(self) -> bool:
        """Whether every promise was kept, in a run that proves something."""
        return all(judgement.kept for judgement in self.judgements)


def run(options: RunOptions, command: str, say: Callable[[str], object] = print) -> Verdict:
    """Run and judge; ``command`` is what repeats it. Raises ServerFailed and StackBusy as a rig does.

    Records, logs and report stay in the directory; the servers' data stays only if a promise was broken.
    """
    began = time.monotonic()
    rig = RIGS[options.topology](
        options.directory,
        workers=options.workers,
        seed=options.seed,
        max_attempts=options.max_attempts,
        environment=options.environment,
        small_disks=_strikes(options, _NEED_DISKS),
    )
    with rig:
        tables.prepare(rig.urls, options.seed, rig.history)
        rig.launch()
        say(f"ready after {time.monotonic() - began:.0f} s; records and logs are in {rig.directory}")
        with closing(_SpokenHistory(rig.history / "run.jsonl", say)) as history:
            workload = Workload(rig.producer_url, history, options.seed, rate=options.rate, batch=options.batch)
            with Sampler(rig.urls, history, lambda: workload.committed, fetched=rig.fetched):
                left_out = _disturb(options, rig, history, workload, say)
                say("the last fault is healed; waiting for rest")
                drained = settle(rig.urls, rig.nats.url, options.rest, rig.cold)
            if not drained:
                say(f"not at rest after {options.rest:.0f} s: {'; '.join(left(rig.urls, rig.nats.url, rig.cold))}")
            collect(rig.urls, rig.nats.url, history, rig.cold)
    return _judge(options, command, left_out, drained=drained)


def _strikes(options: RunOptions, kinds: Collection[str]) -> bool:
    """Whether faults of one of these kinds may come."""
    return not options.liveness and (options.kinds is None or not {*kinds}.isdisjoint(options.kinds))


def _disturb(
    options: RunOptions, rig: Rig, history: History, workload: Workload, say: Callable[[str], object]
) -> Sequence[str]:
    """Produce under faults until the time is over; returns the kinds that could not strike here."""
    nemesis = Nemesis(
        rig,
        history,
        options.seed,
        every=options.every,
        hold=options.hold,
        kinds=options.kinds,
        burst=workload.burst,
        hanging=options.hanging,
    )
    if nemesis.left_out:
        say(f"left out, as they are for another user or other servers: {', '.join(nemesis.left_out)}")
    with workload:
        until = time.monotonic() + options.seconds
        (nemesis.run_liveness if options.liveness else nemesis.run)(until)
    return nemesis.left_out


def _judge(options: RunOptions, command: str, left_out: Sequence[str], *, drained: bool) -> Verdict:
    directory = options.directory.absolute()
    evidence = read(directory / "history")
    judgements = judge(evidence, drained=drained, liveness=options.liveness, max_attempts=options.max_attempts)
    facts = {
        "mode": "liveness" if options.liveness else "safety",
        "servers": options.topology,
        "seconds of faults": f"{options.seconds:.0f}",
        "events per second at most": f"{options.rate:g}",
        "workers": str(options.workers),
        "kinds left out: not permitted": ", ".join(left_out) or "none",
    }
    report = directory / REPORT
    report.write_text(render(evidence, judgements, Meta(options.seed, command, facts)))
    verdict = Verdict(judgements, report)
    if verdict.kept:
        shutil.rmtree(directory / "servers", ignore_errors=True)
    return verdict


class _SpokenHistory(History):
    """A history that also prints faults as they end, and the counts now and then."""

    def __init__(self, path: Path, say: Callable[[str], object]) -> None:
        super().__init__(path)
        self._say = say
        self._samples = 0

    def write(self, *records: Record) -> None:
        """Append records; see `History`."""
        super().write(*records)
        for record in records:
            match record:
                case Fault():
                    self._say(
                        f"{record.kind} at {record.target}, {record.ended - record.began:.1f} s {record.note}"
                    )
                case Sample():
                    self._count(record)

    def _count(self, sample: Sample) -> None:
        self._samples += 1
        if self._samples % _SAY_EVERY == 0:
            self._say(
                f"{self._samples} s: committed {sample.committed}, published {_shown(sample.published)}, "
                f"handled {_shown(sample.handled)}"
            )


def _shown(count: int | None) -> str:
    return "unknown" if count is None else str(count)
