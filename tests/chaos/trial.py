"""One load on a cluster, and what was seen of it: one-offs come by Kafka, workers run them, faults come in between."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg

from fencepost import CommandProducer, JobSpec, Schedule, at
from fencepostd.local import LOCAL_TENANT
from schemas.ids import partition_of_job
from streams.topics import Topics
from tests.chaos.checker import Report, check
from tests.chaos.cluster import PARTITIONS, Cluster, WorkerProcess, wait_for
from tests.chaos.explanations import Explanations, beginnings, explain
from tests.chaos.history import History, WorkerEntry
from tests.chaos.observations import (
    read_commands,
    read_events,
    read_ledger,
    read_takeovers,
    read_told,
    runs_of,
    topic_ends,
)
from tests.chaos.ownerless import tenures
from tests.chaos.timeline import Timeline

MAX_ATTEMPTS = 50
VISIBILITY_S = 5.0
WORK_S = 0.02
CONVERGENCE_DEADLINE_S = 90.0
TELL_PERIOD_S = 2.0
OUTAGE_MAX_S = 90.0  # how long a producer goes on trying


class Trial:
    """A queue of its own on a cluster that is whole. Use it as a context manager: its workers end with it."""

    def __init__(self, cluster: Cluster, folder: Path, title: str) -> None:
        self.cluster, self._folder = cluster, folder
        self.timeline = cluster.timeline = Timeline(title)
        self.queue = f"chaos-{uuid4().hex[:8]}"
        self._lasting = f"{self.queue}-lasting"
        self.workers: list[WorkerProcess] = []
        self.one_offs: dict[str, datetime] = {}
        self.open_ended: list[UUID] = []
        self._first_epoch_sample = len(cluster.epochs.samples)
        bootstrap, topics = cluster.stack.bootstrap, Topics()
        self._starts = {topic: topic_ends(bootstrap, topic) for topic in (topics.run_events, topics.commands)}
        self.producer = CommandProducer(
            cluster.stack.bootstrap, tenant=LOCAL_TENANT, delivery_timeout_s=OUTAGE_MAX_S, partitions=PARTITIONS
        )
        self._load_ends = threading.Event()
        self._tell_at = 0.0
        self._spreading: threading.Thread | None = None
        self._failed: BaseException | None = None

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        for worker in self.workers:
            worker.end()
        if failure is not None:
            self.end_open_ended()  # or the next trial would find the cluster at work for this one
        self._load_ends.set()
        if self._spreading is not None:
            self._spreading.join()
        self.producer.close()

    # --- the load ---

    def create(self, count: int, *, first_due_s: float, spread_s: float) -> None:
        """One-offs that are due from first_due_s on, evenly over spread_s. Returns when Kafka has them."""
        now = datetime.now(UTC)
        for number in range(count):
            self._create_one(now + timedelta(seconds=first_due_s + spread_s * number / max(count, 1)))
        self.producer.flush()
        self.timeline.note(f"{count} one-offs created, due in {first_due_s:g} to {first_due_s + spread_s:g} s")

    def create_meanwhile(self, count: int, *, lead_s: float, per_s: float) -> None:
        """Begin to create one-offs, each due lead_s after its creation: `count` of them, and more until `end_load`."""
        self._load_ends.clear()
        self._spreading = threading.Thread(target=self._spread, args=(count, lead_s, per_s), daemon=True)
        self._spreading.start()

    def end_load(self) -> None:
        """No more one-offs once `count` are there; returns when the last one is sent. Raises what creating raised."""
        self._load_ends.set()
        if self._spreading is not None:
            self._spreading.join()
            assert self._failed is None, f"creating jobs failed: {self._failed!r}"
        self.producer.flush()

    def create_open_ended(self, count: int, schedule: Schedule, **terms: Any) -> list[UUID]:
        """Jobs that are not promised to be completed by the end, where they are deleted."""
        spec = JobSpec(queue=self.queue, schedule=schedule, max_attempts=MAX_ATTEMPTS, **terms)
        job_ids = [self.producer.create_job(spec) for _ in range(count)]
        self.open_ended += job_ids
        self.producer.flush()
        return job_ids

    def create_in_every_partition(self, schedule: Schedule, **terms: Any) -> None:
        """Open-ended jobs, until each partition has one."""
        while len({partition_of_job(job_id, PARTITIONS) for job_id in self.open_ended}) < PARTITIONS:
            self.create_open_ended(8, schedule, **terms)

    def end_open_ended(self) -> None:
        """Delete them."""
        for job_id in self.open_ended:
            self.producer.delete(job_id)
        self.producer.flush()

    def create_lasting(self, count: int) -> None:
        """One-offs for a lasting worker, due now."""
        for _ in range(count):
            self._create_one(datetime.now(UTC), self._lasting)
        self.producer.flush()

    def _create_one(self, due: datetime, queue: str | None = None) -> None:
        spec = JobSpec(queue=queue or self.queue, schedule=at(due), max_attempts=MAX_ATTEMPTS)
        self.one_offs[str(self.producer.create_job(spec))] = due

    def _spread(self, count: int, lead_s: float, per_s: float) -> None:
        """At this pace for `count`; then a quarter of it, so that a slow recovery does not make a larger test."""
        number = 0
        try:
            while number < count or not self._load_ends.is_set():
                self._create_one(datetime.now(UTC) + timedelta(seconds=lead_s))
                number += 1
                time.sleep((1 if number < count else 4) / per_s)  # faults come by what the workers have done of it
        except BaseException as error:
            self._failed = error

    def begin_with_new_topics(self) -> None:
        """The topics were made anew: what `history` tells is read from their beginning."""
        self._starts = {topic: {} for topic in self._starts}

    # --- the workers ---

    def add_worker(
        self, *, visibility_s: float = VISIBILITY_S, work_s: float = WORK_S, blind: bool = False
    ) -> WorkerProcess:
        """One more worker process; returns at once."""
        terms = [str(visibility_s), str(work_s), *(["--blind"] if blind else [])]
        name = f"{self.queue}-w{len(self.workers)}"
        return self._add_worker(self.queue, name, terms)

    def add_lasting_worker(self, *, visibility_s: float = VISIBILITY_S) -> WorkerProcess:
        """One whose runs last until it gets SIGUSR1: those of `create_lasting`."""
        return self._add_worker(self._lasting, f"{self._lasting}-w", [str(visibility_s)], "tests.chaos.lasting_worker")

    def _add_worker(
        self, queue: str, name: str, terms: list[str], module: str = "tests.chaos.worker_process"
    ) -> WorkerProcess:
        token = self.cluster.local.token
        worker = WorkerProcess(self._folder, self.cluster.url, token, queue, name, terms, module)
        self.workers.append(worker)
        return worker

    def kill_worker(self, worker: WorkerProcess) -> None:
        self.timeline.fault(f"kill -9 {worker.name}")
        worker.kill()

    def freeze_worker(self, worker: WorkerProcess) -> None:
        self.timeline.fault(f"SIGSTOP {worker.name}")
        worker.freeze()

    def entries(self) -> list[WorkerEntry]:
        """What all workers have noted until now."""
        return [entry for worker in self.workers for entry in worker.entries()]

    def finished(self) -> int:
        """How many runs a handler has brought to its end."""
        return len({entry.run_id for entry in self.entries() if entry.kind == "finished"})

    def wait_for_progress(self, count: int, deadline_s: float = CONVERGENCE_DEADLINE_S) -> None:
        """Until so many more runs were executed."""
        goal = self.finished() + count
        wait_for(lambda: self.finished() >= goal, deadline_s, f"{goal} runs executed")

    # --- the verdict ---

    def converge(self, deadline_s: float = CONVERGENCE_DEADLINE_S) -> Report:
        """Wait until every accepted command was applied and nothing waits any more; then judge what was seen."""
        self.settle(deadline_s)
        return self.judge(self.history())

    def settle(self, deadline_s: float = CONVERGENCE_DEADLINE_S) -> None:
        """Wait until every accepted command was applied and nothing waits any more."""
        self.end_load()
        self.end_open_ended()
        took_s = wait_for(self._is_quiet, deadline_s, f"everything of {self.queue} is done")
        self.timeline.note(f"converged after {took_s:.1f} s")

    def judge(self, history: History) -> Report:
        """Hold the rules against what was seen."""
        report = check(history)
        self.timeline.note(str(report))
        for violation in report.violations[:20]:
            self.timeline.note(f"VIOLATION {violation.rule}: {violation.subject} {violation.detail}")
        return report

    def history(self) -> History:
        """All that can be seen of this trial now."""
        job_ids, topics = self.job_ids(), Topics()
        bootstrap = self.cluster.stack.bootstrap
        told = read_told(bootstrap, topics.run_events, self._starts[topics.run_events], job_ids)
        return History(
            one_offs=self.one_offs,
            entries=self.entries(),
            events=runs_of(told),
            told=told,
            commands=read_commands(bootstrap, topics.commands, self._starts[topics.commands], job_ids),
            epochs=self.cluster.epochs.samples[self._first_epoch_sample :],
            ledger=read_ledger(self.cluster.stack.dsn, job_ids),
            faults=self.timeline.faults,
        )

    def waiting(self) -> dict[str, int]:
        """What waits in the ledger: this trial's runs, and anybody's events."""
        return {what: count for what, count in self._open_ends().items() if what in ("runs", "events")}

    def completed_in_history(self) -> int:
        """How many runs of this trial the history service has as completed; -1 while it does not answer."""
        queues = f"'{self.queue}', '{self._lasting}'"
        rows = self._ask_history(f"SELECT count(*) FROM runs WHERE queue IN ({queues}) AND state = 'completed'")
        return int(rows[0][0]) if rows else -1

    def runs_completed_in_history(self) -> set[str]:
        """Which they are; none while it does not answer."""
        rows = self._ask_history(f"SELECT run_id FROM runs WHERE queue = '{self.queue}' AND state = 'completed'")
        return {run_id for (run_id,) in rows}

    def _ask_history(self, sql: str) -> list[list[Any]]:
        local = self.cluster.local
        headers = {"Authorization": f"Bearer {local.token}"}
        try:
            answer = httpx.post(
                f"{local.url}/v1/query", json={"sql": sql}, headers=headers, timeout=10, trust_env=False
            )
        except httpx.HTTPError:
            return []
        rows: list[list[Any]] = answer.json()["rows"] if answer.is_success else []
        return rows

    def explained(self, report: Report) -> Explanations:
        """What the API says of why each of this trial's runs waited, once the history has caught up."""
        caught_up = f"the history has {report.completed} completed runs"
        wait_for(lambda: self.completed_in_history() == report.completed, CONVERGENCE_DEADLINE_S, caught_up)
        topic, stack, local = Topics().run_events, self.cluster.stack, self.cluster.local
        runs = beginnings(read_events(stack.bootstrap, topic, self._starts[topic], self.job_ids()))
        owned = tenures(read_takeovers(stack.dsn), self.cluster.stops)
        began = time.monotonic()
        explanations = explain(local.url, local.token, runs, owned)
        self.timeline.note(f"{explanations}, told in {time.monotonic() - began:.1f} s")
        return explanations

    def job_ids(self) -> set[str]:
        """Of all jobs of this trial."""
        return {*self.one_offs, *map(str, self.open_ended)}

    def _is_quiet(self) -> bool:
        left = {what: count for what, count in self._open_ends().items() if count}
        if left and time.monotonic() > self._tell_at:
            self.timeline.note(f"waiting for {left}")
            self._tell_at = time.monotonic() + TELL_PERIOD_S
        return not left

    def _open_ends(self) -> dict[str, int]:
        """What still waits, by the ledger: creates and deletes that were not applied, runs, events."""
        with psycopg.connect(self.cluster.stack.dsn, autocommit=True) as conn:
            row = conn.execute(
                """
                SELECT %(jobs)s - (SELECT count(*) FROM jobs WHERE queue IN (%(queue)s, %(lasting)s)),
                       (SELECT count(*) FROM jobs WHERE job_id = ANY (%(open_ended)s) AND state <> 'deleted'),
                       (SELECT count(*) FROM runs WHERE queue IN (%(queue)s, %(lasting)s)),
                       (SELECT count(*) FROM outbox)
                """,
                {
                    "jobs": len(self.job_ids()),
                    "queue": self.queue,
                    "lasting": self._lasting,
                    "open_ended": self.open_ended,
                },
            ).fetchone()
        assert row is not None
        return dict(zip(("creates", "deletes", "runs", "events"), row, strict=True))
