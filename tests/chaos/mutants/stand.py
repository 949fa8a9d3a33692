"""Where a mutant is tried: one installation with its own database and topics, on servers that all of them share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from confluent_kafka import Producer

from fencepost import CommandProducer, FencepostClient, JobSpec, RunContext, Schedule, at
from fencepost.models import Completion, LeasedRun
from fencepostd.local import LOCAL_TENANT
from schemas.ids import partition_of_job, run_id_for
from tests.chaos.checker import Violation, check
from tests.chaos.history import EntryKind, History, WorkerEntry
from tests.chaos.installation import Installation
from tests.chaos.job_rules import Edited, Holding, Promises, Still, broken
from tests.chaos.observations import EpochWatch, read_commands, read_ledger, read_told, read_topic, runs_of
from tests.chaos.readouts import read_holdings
from tests.chaos.worker_process import RecordingClient

PARTITIONS = 4
POLL_S = 0.05


class Notebook:
    """What workers of a trial saw, in the harness's own memory; stands for `worker_process.Log`."""

    def __init__(self, entries: list[WorkerEntry], worker: str) -> None:
        self._entries, self._worker = entries, worker

    def note(self, kind: EntryKind, run_id: UUID, token: int, **more: Any) -> None:
        self._entries.append(WorkerEntry(kind, datetime.now(UTC), self._worker, str(run_id), token, **more))


class Stand:
    """One trial's view of an installation: its jobs, its workers and what they saw. Everything in one queue."""

    queue = "trial"

    def __init__(self, installation: Installation, converge_s: float) -> None:
        self.installation = installation
        self._converge_s = converge_s
        self._topics = installation.topics
        self.producer = CommandProducer(
            installation.servers.kafka,
            tenant=LOCAL_TENANT,
            topic_prefix=self._topics.prefix,
            partitions=PARTITIONS,
            linger_ms=1,
        )
        self._epochs = EpochWatch(installation.servers.postgres)
        self.entries: list[WorkerEntry] = []
        self.faults: list[str] = []
        self.one_offs: dict[str, datetime] = {}
        self.recurring: set[str] = set()
        self.still: list[Still] = []
        self.edited: list[Edited] = []
        self.undecided: dict[str, datetime] = {}
        self.holdings: list[Mapping[int, Holding]] = []

    def close(self) -> None:
        self._epochs.close()
        self.producer.close()

    # --- jobs ---

    def one_off(self, due_in_s: float = 0, **spec: Any) -> UUID:
        """One that must be completed."""
        due = datetime.now(UTC) + timedelta(seconds=due_in_s)
        job = self._create(at(due), **spec)
        self.one_offs[str(job)] = due
        return job

    def recur(self, schedule: Schedule, **spec: Any) -> UUID:
        """One that is deleted in the end."""
        job = self._create(schedule, **spec)
        self.recurring.add(str(job))
        return job

    def recur_in_every_partition(self, schedule: Schedule, **spec: Any) -> None:
        while len({partition_of_job(UUID(job), PARTITIONS) for job in self.recurring}) < PARTITIONS:
            self.recur(schedule, **spec)

    def _create(self, schedule: Schedule, **spec: Any) -> UUID:
        terms = {"queue": self.queue, "max_attempts": 20, "retry_backoff": "fixed", "retry_base_seconds": 0.2, **spec}
        job = self.producer.create_job(JobSpec(schedule=schedule, **terms))
        self.producer.flush()
        return job

    def job_state(self, job: UUID) -> tuple[str, int]:
        """What the ledger says of it: its state and its version; ("", 0) where there is none."""
        found = self.ask("SELECT state, version FROM jobs WHERE job_id = %s", job)
        return found[0] if found else ("", 0)

    def ask(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Of the ledger."""
        with psycopg.connect(self.installation.servers.postgres, autocommit=True) as conn:
            return conn.execute(sql, parameters).fetchall()

    # --- hints and commands that come again, as the contract allows ---

    def hint_again(self) -> None:
        """Every hint that was ever sent comes once more."""
        self._produce_again(self._topics.ready, lambda _: True)

    def command_again(self, kind: str, job: UUID) -> None:
        """A producer that did not hear of the broker's acknowledgement has sent it twice."""
        [command_id] = self._command_ids(kind, job)
        self._produce_again(self._topics.commands, lambda value: command_id.encode() in value)

    def is_applied(self, kind: str, job: UUID) -> bool:
        """Whether the ledger says so of all commands of a kind that were sent for a job."""
        ids = self._command_ids(kind, job)
        [(count,)] = self.ask("SELECT count(*) FROM applied_commands WHERE command_id::text = ANY (%s)", ids)
        return bool(count == len(ids))

    def _command_ids(self, kind: str, job: UUID) -> list[str]:
        commands = read_commands(self.installation.servers.kafka, self._topics.commands, {}, {str(job)})
        return [command.command_id for command in commands if command.kind == kind]

    def _produce_again(self, topic: str, wanted: Callable[[bytes], bool]) -> None:
        producer = Producer({"bootstrap.servers": self.installation.servers.kafka, "acks": "all"})
        for record in list(read_topic(self.installation.servers.kafka, topic)):
            if wanted(record.value()):
                producer.produce(topic, record.value(), record.key(), record.partition())
        assert producer.flush(10) == 0

    # --- workers ---

    def client(self, worker: str) -> FencepostClient:
        """One that notes what it sees, as that worker."""
        notebook: Any = Notebook(self.entries, worker)
        return RecordingClient(self.installation.url(), self.installation.token, notebook)

    async def lease_one(self, worker: str, *, visibility_s: float = 20, within_s: float = 20) -> LeasedRun | None:
        """The next run of the queue, or None when none comes."""
        async with self.client(worker) as client:
            until = time.monotonic() + within_s
            while time.monotonic() < until:
                wait_s = min(1.0, max(0.1, until - time.monotonic()))
                runs = await client.lease(self.queue, worker, visibility_s=visibility_s, wait_s=wait_s)
                if runs:
                    return runs[0]
        return None

    async def handle(self, worker: str, context: RunContext, work_s: float) -> None:
        """What a handler of the SDK's worker does: note its start and its end, and take a moment in between."""
        notebook = Notebook(self.entries, worker)
        notebook.note("started", context.run_id, context.lease_token)
        await asyncio.sleep(work_s)
        notebook.note("finished", context.run_id, context.lease_token)

    def finished(self) -> int:
        """How many runs a handler has brought to its end."""
        return len({entry.run_id for entry in self.entries if entry.kind == "finished"})

    def is_finished(self, job: UUID, occurrence: datetime) -> bool:
        """Whether a handler has brought the run of a job's occurrence to its end."""
        run_id = str(run_id_for(job, occurrence, partition_of_job(job, PARTITIONS)))
        return any(entry.run_id == run_id and entry.kind == "finished" for entry in self.entries)

    async def complete(self, run: LeasedRun, worker: str) -> int:
        """The status that it gets."""
        async with self.client(worker) as client:
            [answer] = await client.complete_many([Completion(run.run_id, run.lease_token)], retry_for_s=0)
            return answer.status

    async def finish(self, run: LeasedRun, worker: str) -> int:
        """As a handler does that has run to its end."""
        Notebook(self.entries, worker).note("finished", run.run_id, run.lease_token)
        return await self.complete(run, worker)

    def undecided_now(self) -> dict[str, datetime]:
        """Of what recurs, the jobs of which an owner has said too much, and what."""
        return dict(
            self.ask(
                """
                SELECT job_id::text, decided_through FROM jobs JOIN partitions USING (partition)
                WHERE job_id::text = ANY (%s) AND state = 'active' AND next_fire_at < decided_through
                """,
                list(self.recurring),
            )
        )

    # --- waiting and judging ---

    async def wait_for(self, condition: Callable[[], bool], within_s: float = 30) -> bool:
        """Whether it came to hold."""
        until = time.monotonic() + within_s
        while not await asyncio.to_thread(condition):
            if time.monotonic() > until:
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def finish_some(self) -> None:
        """Until as many runs more have been brought to their end as two rounds of what recurs have."""
        done = self.finished()
        await self.wait_for(lambda: self.finished() >= done + 2 * len(self.recurring))

    def judge(self) -> list[Violation]:
        """End what recurs, wait until nothing waits any more (or for too long), and hold all rules against it."""
        for job in self.recurring:
            self.producer.delete(UUID(job))
        self.producer.flush()
        until = time.monotonic() + self._converge_s
        while not self._is_quiet() and time.monotonic() < until:
            time.sleep(POLL_S)
        history = self._history()
        promises = Promises(
            history.events,
            history.entries,
            dead_runs=history.ledger.dead_runs,
            still=self.still,
            edited=self.edited,
            holdings=[*self.holdings, read_holdings(self.installation)],
            undecided=self.undecided,
        )
        return [*check(history).violations, *broken(promises)]

    def _is_quiet(self) -> bool:
        [(live, runs, events, behind)] = self.ask(
            """
            SELECT (SELECT count(*) FROM jobs WHERE job_id = ANY (%s) AND state <> 'deleted'),
                   (SELECT count(*) FROM runs), (SELECT count(*) FROM outbox),
                   (SELECT count(*) FROM partitions WHERE owner IS NULL)
            """,
            [UUID(job) for job in self.recurring],
        )
        created: list[tuple[int]] = self.ask("SELECT count(*) FROM jobs")
        wanted = len(self.one_offs) + len(self.recurring)
        return not (live or runs or events or behind) and created[0][0] == wanted

    def _history(self) -> History:
        servers, topics = self.installation.servers, self._topics
        jobs = {*self.one_offs, *self.recurring}
        told = read_told(servers.kafka, topics.run_events, {}, jobs)
        return History(
            one_offs=self.one_offs,
            entries=self.entries,
            events=runs_of(told),
            told=told,
            commands=read_commands(servers.kafka, topics.commands, {}, jobs),
            epochs=self._epochs.samples,
            ledger=read_ledger(servers.postgres, jobs),
            faults=self.faults,
        )
