"""What producers ask for: a few jobs of every kind, and what happens to them later. Some commands are sent twice."""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from schemas.commands import (
    CancelRun,
    Command,
    CreateJob,
    DeleteJob,
    JobSpec,
    PauseJob,
    ResumeJob,
    TriggerJob,
    UpdateJob,
)
from schemas.ids import partition_of_job, run_id_for
from tests.simulation.api_process import TENANT
from tests.simulation.kafka import Broker
from tests.simulation.scheduler import SECOND_US, START, Scheduler, sleep

QUEUES = ["mail", "sms"]
LOAD_S = 9.0
Sent = dict[UUID, tuple[int, int, Command]]


class Producer:
    """sent: of each command its partition, the offset of its first record, and itself."""

    def __init__(self, scheduler: Scheduler, broker: Broker) -> None:
        self._scheduler, self._broker, self._random = scheduler, broker, scheduler.random
        self.sent: Sent = {}
        self.under_way = 0
        for _ in range(self._random.randrange(2, 8)):
            self._spawn(self._one_job())

    def _spawn(self, work: Any) -> None:
        self.under_way += 1
        self._scheduler.spawn(work)

    async def _one_job(self) -> None:
        random = self._random
        await sleep(int(random.random() ** 2 * LOAD_S * 0.7 * SECOND_US))
        job_id = UUID(int=random.getrandbits(128))
        spec = new_spec(random, self._now_s())
        self._send(CreateJob, job_id, spec=spec)
        is_paused = False
        for _ in range(random.randrange(0, 4)):
            await sleep(int(random.random() * 2.5 * SECOND_US))
            if self._now_s() > LOAD_S:
                break
            is_paused = self._change(job_id, spec, is_paused)
        if is_paused:
            self._send(ResumeJob, job_id)
        self.under_way -= 1

    def _change(self, job_id: UUID, spec: JobSpec, is_paused: bool) -> bool:
        """Whether the job is paused from now on."""
        random = self._random
        what = random.random()
        if is_paused and what < 0.6:
            self._send(ResumeJob, job_id)
            return False
        if what < 0.35:
            self._send(TriggerJob, job_id)
        elif what < 0.6:
            self._send(PauseJob, job_id)
            return True
        elif what < 0.75:
            if "everySeconds" in spec.schedule:
                schedule = spec.schedule | {"everySeconds": random.randrange(1, 4)}
                self._send(UpdateJob, job_id, spec=replace(spec, schedule=schedule))
        elif what < 0.85:
            self._send(DeleteJob, job_id)
        elif "runAt" in spec.schedule:
            at = datetime.fromisoformat(spec.schedule["runAt"])
            run_id = run_id_for(job_id, at, partition_of_job(job_id, len(self._broker.commands)))
            self._send(CancelRun, job_id, run_id=run_id)
        return is_paused

    def _send(self, kind: type[Command], job_id: UUID, **fields: Any) -> None:
        random = self._random
        command = kind(
            command_id=UUID(int=random.getrandbits(128)), tenant=TENANT, job_id=job_id,
            issued_at=self._scheduler.now, **fields,
        )  # fmt: skip
        partition = partition_of_job(job_id, len(self._broker.commands))
        self.sent[command.command_id] = (partition, len(self._broker.commands[partition]), command)
        self._broker.produce(partition, command)
        if random.random() < 0.15:
            self._spawn(self._send_again(partition, command))

    async def _send_again(self, partition: int, command: Command) -> None:
        await sleep(int(self._random.random() * SECOND_US))
        self._broker.produce(partition, command)
        self.under_way -= 1

    def _now_s(self) -> float:
        return (self._scheduler.now - START).total_seconds()


def new_spec(random: Random, now_s: float) -> JobSpec:
    """A definition whose last occurrence comes soon after the load's end."""
    schedule: dict[str, Any]
    kind = random.random()
    if kind < 0.55:
        end = START + timedelta(seconds=now_s + random.uniform(2, LOAD_S))
        schedule = {"everySeconds": random.choice([1, 2, 3]), "endAt": end.isoformat().replace("+00:00", "Z")}
    elif kind < 0.85:
        at = START + timedelta(seconds=max(0.0, now_s + random.uniform(-0.5, 6)))
        schedule = {"runAt": at.isoformat().replace("+00:00", "Z")}
    else:
        schedule = {"delaySeconds": random.randrange(0, 4)}
    return JobSpec(
        queue=random.choice(QUEUES),
        schedule=schedule,
        lane=random.choice(["high", "normal", "low"]),
        max_attempts=random.randrange(1, 6),
        timeout_seconds=random.choice([None, None, 2.0]),
        catch_up=random.choice(["latest", "all", "none"]),
        overlap=random.choice(["allow", "skip", "replace"]),
        start_deadline_seconds=random.choice([None, None, None, 3.0]),
        retry_base_seconds=0.3,
        retry_max_seconds=2.0,
    )
