"""Breaks a whole installation on this machine for some minutes, heals it, and judges what became of every job.

    make chaos SEED=7 MINUTES=30                        the same, with the report under docs/chaos/: REPORT=…
    python -m tests.chaos.run [--seed N] [--minutes M] [--only TEXT] [--per-second N] [--report FILE] [--keep FOLDER]

The same seed and minutes break the same at the same instants; what a fault meets is up to the machine. Exit code 1 when
a rule was broken, or when the installation does not come to rest once it is whole again.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import psycopg

from fencepost import CommandProducer
from fencepostd.local import LOCAL_TENANT
from tests.chaos.backlog import spells_behind
from tests.chaos.checker import check
from tests.chaos.cluster import ROOT
from tests.chaos.fault_plan import plan_faults
from tests.chaos.faults import Faults
from tests.chaos.history import History
from tests.chaos.job_rules import Fault, Promises, broken, finished_twice
from tests.chaos.load import Load
from tests.chaos.observations import EpochWatch, read_commands, read_ledger, read_told, runs_of
from tests.chaos.readouts import completed_in_history, count_takeovers, read_by_partition, read_holdings
from tests.chaos.report import Outcome, lateness
from tests.chaos.stage import VISIBILITY_S, Stage
from tests.chaos.timeline import SEED_VARIABLE, Timeline

QUEUE = "chaos"
UNHURT_S = 20.0  # of load after everything is whole again
WHOLE_WITHIN_S, QUIET_WITHIN_S = 300.0, 600.0
OUTAGE_MAX_S = 300.0  # how long the producer goes on trying


class Chronicle(Timeline):
    """A timeline that can be read again. notes: what was done, and how many seconds after the beginning."""

    def __init__(self, title: str) -> None:
        self.notes: list[tuple[float, str]] = []
        self.began = time.monotonic()
        super().__init__(title)

    def note(self, text: str) -> None:
        self.notes.append((time.monotonic() - self.began, text))
        super().note(text)

    def say(self, text: str) -> None:
        """What a part tells of its start: of hundreds of faults nobody reads that twice."""
        super().note(text)


@dataclass(frozen=True)
class Options:
    seed: int
    minutes: float
    per_second: float
    only: str = ""

    def __str__(self) -> str:
        """The command that does the same."""
        only = f" ONLY={shlex.quote(self.only)}" if self.only else ""
        return f"make chaos SEED={self.seed} MINUTES={self.minutes:g}{only}"

    @property
    def told(self) -> dict[str, object]:
        """What the report tells of them, and of where it ran."""
        return {
            "seed": self.seed,
            "minutes": f"{self.minutes:g}",
            "one-offs a second": f"{self.per_second:g}",
            "lease seconds": VISIBILITY_S,
            "cores": os.cpu_count(),
        }


class ChaosRun:
    """One run on one stage, from its first job to the verdict."""

    def __init__(self, stage: Stage, options: Options, timeline: Chronicle) -> None:
        self._stage, self._options, self._timeline = stage, options, timeline
        self._began = datetime.now(UTC)
        self._servers = stage.installation.servers
        self._planned = plan_faults(options.seed, options.minutes * 60, stage.targets, options.only)
        self._epochs = EpochWatch(self._servers.postgres)
        self._producer = CommandProducer(
            stage.told_kafka(),
            tenant=LOCAL_TENANT,
            delivery_timeout_s=OUTAGE_MAX_S,
            partitions=stage.installation.partitions,
        )
        self._load = Load(self._producer, QUEUE, self._servers.postgres, options.seed, options.per_second)
        self._faults = Faults(stage, timeline, self._load.spike)
        self._is_quiet = False

    def run(self) -> Outcome:
        """Hurt, heal, wait, judge."""
        self._load.start()
        self._faults.carry_out(self._planned)
        self._make_whole()
        whole_since = datetime.now(UTC)
        time.sleep(UNHURT_S)
        self._end_load()
        self._timeline.note(f"the load ends: {len(self._load.jobs)} jobs")
        self._is_quiet = self._wait_until_quiet()
        return self._judge(whole_since)

    def _make_whole(self) -> None:
        try:
            took_s = self._stage.make_whole(WHOLE_WITHIN_S)
            self._timeline.note(f"everything is whole again after {took_s:.1f} s")
        except AssertionError as error:
            self._timeline.note(f"NOT WHOLE: {error}")

    def _end_load(self) -> None:
        try:
            self._load.end()
        except Exception as error:  # what was created is judged all the same
            self._faults.failures.append(f"the load: {type(error).__name__}: {error}")

    def close(self) -> None:
        self._epochs.close()
        for link in self._stage.links.values():
            link.open()
        self._producer.close(10)

    def _wait_until_quiet(self) -> bool:
        """Until every job is there, what recurs is deleted, no run waits and no event."""
        until, tell_at = time.monotonic() + QUIET_WITHIN_S, time.monotonic() + 5
        while any((left := self._left()).values()):
            if time.monotonic() > until:
                self._timeline.note(f"NOT QUIET: {left}")
                return False
            if time.monotonic() > tell_at:
                self._timeline.note(f"waiting for {left}")
                tell_at += 5
            time.sleep(0.2)
        self._timeline.note("nothing waits any more")
        return True

    def _left(self) -> dict[str, int]:
        recurring = [UUID(job) for job in self._load.recurring]
        with psycopg.connect(self._servers.postgres, autocommit=True) as conn:
            row = conn.execute(
                """
                SELECT %s - (SELECT count(*) FROM jobs),
                       (SELECT count(*) FROM jobs WHERE job_id = ANY (%s) AND state <> 'deleted'),
                       (SELECT count(*) FROM runs), (SELECT count(*) FROM outbox)
                """,
                (len(self._load.jobs), recurring),
            ).fetchone()
        assert row is not None
        return dict(zip(("creates", "deletes", "runs", "events"), row, strict=True))

    # --- the verdict ---

    def _judge(self, whole_since: datetime) -> Outcome:
        history, behind = self._history(), spells_behind(self._epochs.samples)
        report = check(history)
        self._timeline.note(str(report))
        promises = self._promises(history, behind, report.completed)
        duplicates = len(finished_twice(history.entries))
        counts = {
            "jobs": len(self._load.jobs),
            "runs": report.runs,
            "completed": report.completed,
            "leases": report.attempts,
            "died, as they were to": len(promises.dead_runs),
            "commands": len(history.commands),
            "faults": len(self._planned),
            "takeovers of partitions": count_takeovers(self._stage.installation),
            "pauses that were watched": len(self._load.still),
            "edits that were watched": len(self._load.edited),
            "seconds until nothing was 5 s late, after all was whole": _seconds_behind(behind, whole_since),
            "handlers that ran to their end twice": duplicates,
        }
        return Outcome(
            command=str(self._options),
            commit=_commit(),
            began=self._began,
            options=self._options.told,
            planned=self._planned,
            timeline=self._timeline.notes,
            counts=counts,
            lateness=lateness(history.events, self._faults.happened, whole_since),
            duplicates=duplicates,
            completed=report.completed,
            violations=[*report.violations, *broken(promises)],
            notes=self._notes(),
        )

    def _history(self) -> History:
        """Of the ledger's dead runs only those that were not to die."""
        installation, jobs = self._stage.installation, self._load.jobs
        told = read_by_partition(installation, installation.topics.run_events, read_told, jobs)
        readout = read_ledger(self._servers.postgres, jobs)
        doomed = {event.run_id for event in runs_of(told) if event.job_id in self._load.doomed}
        return History(
            one_offs=self._load.one_offs,
            entries=self._stage.entries(),
            events=runs_of(told),
            told=told,
            commands=read_by_partition(installation, installation.topics.commands, read_commands, jobs),
            epochs=self._epochs.samples,
            ledger=replace(readout, dead_runs=readout.dead_runs - doomed),
            faults=self._timeline.faults,
        )

    def _promises(self, history: History, behind: Sequence[Fault], completed: int) -> Promises:
        load, installation = self._load, self._stage.installation
        return Promises(
            history.events,
            history.entries,
            dead_runs=read_ledger(self._servers.postgres, load.jobs).dead_runs,
            doomed=load.doomed,
            still=load.still,
            edited=load.edited,
            holdings=[read_holdings(installation)],
            faults=[*self._faults.happened, *behind],
            in_history=completed_in_history(installation, completed),
        )

    def _notes(self) -> list[str]:
        notes = [] if self._is_quiet else ["it did NOT come to rest once everything was whole again"]
        notes += [f"the harness failed: {failure}" for failure in self._faults.failures]
        if missing := self._stage.clocks.missing:
            notes.append(f"no clock was set wrong: {missing}")
        return notes

    @property
    def is_sound(self) -> bool:
        """It came to rest, and the harness did what was planned."""
        return self._is_quiet and not self._faults.failures


def _seconds_behind(behind: Sequence[Fault], since: datetime) -> int:
    return round(max([0.0, *((spell.until - since).total_seconds() for spell in behind)]))


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return git("rev-parse", "--short", "HEAD") + (" and what is not committed" if git("status", "--porcelain") else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--minutes", type=float, default=5, help="how long it is hurt")
    parser.add_argument(
        "--only", default="", help="a text in the names of the faults, see fault_plan.py: 'link', 'disk'"
    )
    parser.add_argument("--per-second", type=float, default=80, help="one-offs; what recurs makes some 25 runs more")
    parser.add_argument("--report", type=Path, help="where to write the report, as Markdown")
    parser.add_argument("--keep", type=Path, help="a new folder for all data and logs, which stays")
    given = parser.parse_args()
    options = Options(given.seed, given.minutes, given.per_second, given.only)
    os.environ[SEED_VARIABLE] = str(options.seed)
    timeline = Chronicle(f"chaos for {options.minutes:g} minutes, {options.per_second:g} one-offs a second")
    with ExitStack() as stack:
        state = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        stage = Stage(state, QUEUE, note=timeline.note, say=timeline.say)
        stack.callback(stage.down)
        stage.up()
        run = ChaosRun(stage, options, timeline)
        stack.callback(run.close)
        outcome = run.run()
    for violation in outcome.violations[:50]:
        print(f"VIOLATION {violation.rule}: {violation.subject}: {violation.detail}", flush=True)
    for kind, late in outcome.lateness.items():
        print(f"{kind}: {late} (runs, p50, p99, worst in s)")
    print(", ".join(f"{what}: {count}" for what, count in outcome.counts.items()))
    print(outcome.verdict, flush=True)
    if given.report:
        given.report.parent.mkdir(parents=True, exist_ok=True)
        given.report.write_text(outcome.markdown())
        print(f"written to {given.report}")
    sys.exit(0 if run.is_sound and not outcome.violations else 1)


if __name__ == "__main__":
    main()
