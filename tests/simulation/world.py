"""A simulation: everything that takes part, put together from a seed; it is hurt, then healed, and must converge."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import tests.simulation.statements  # noqa: F401 - the models of the statements
from tests.simulation.api_process import ApiProcess, History
from tests.simulation.faults import FAULTS_S, Faults
from tests.simulation.kafka import Broker
from tests.simulation.load import QUEUES, Producer
from tests.simulation.observer import Seen, Violation, judge
from tests.simulation.partition_move import Mover
from tests.simulation.placements import Placement
from tests.simulation.postgres import Commit, Shard
from tests.simulation.relay import Relay
from tests.simulation.rows import Partition
from tests.simulation.scheduler import SECOND_US, START_US, Crashed, Scheduler
from tests.simulation.streams_process import Group, StreamsProcess
from tests.simulation.timing_memory import Store
from tests.simulation.worker import Entry, Network, Worker

PARTITIONS = 2
HEAL_US = START_US + int((FAULTS_S + 1) * SECOND_US)
CONVERGES_US = 150 * SECOND_US


class World:
    """without: the rule that the protocol lacks, one of `rules.py: MUTANTS`. only: of faults these, see `Faults`."""

    def __init__(self, seed: int, without: str | None = None, only: Sequence[str] = ()) -> None:
        self.seed, self._without = seed, without
        self.scheduler = Scheduler(Random(seed))
        random = self.scheduler.random
        self.commits: list[Commit] = []
        self.entries: list[Entry] = []
        self.shards = [
            Shard(number, self.scheduler, self.commits.append, without)
            for number in range(2 if "move" in only else random.choice([1, 2, 2]))
        ]
        for partition in range(PARTITIONS):
            shard = partition % len(self.shards)
            self.shards[shard].tables["partitions"][partition] = Partition(partition)
            self.shards[0].tables["placements"][partition] = Placement(partition, shard)
        self.broker = Broker(self.scheduler, PARTITIONS)
        self.history = History()
        self.group = Group(self.scheduler, PARTITIONS)
        self.stores: list[dict[int, Store]] = [{} for _ in range(random.choice([1, 2, 3]))]
        self._starts = 0
        self.streams: list[StreamsProcess] = []
        for place in range(len(self.stores)):
            self.start_streams(place)
        self._polls = random.choice(["doubting", "trusting", "none"])
        self.apis: list[ApiProcess] = []
        for place in range(random.choice([1, 2])):
            self.start_api(place)
        self.relays: list[Relay] = []
        for place in range(len(self.shards)):
            self.start_relay(place)
        self.network = Network(self.scheduler, self.apis)
        self._visibility_s = random.choice([1.0, 2.0, 4.0])
        self._careless = random.random() < 0.3
        self.workers: list[Worker] = []
        for place in range(random.choice([1, 2, 3])):
            self.start_worker(place)
        self.movers: list[Mover] = []
        self.producer = Producer(self.scheduler, self.broker)
        self.faults = Faults(self, only)
        lost_answers = random.choice([0.0, 0.0, 0.03])
        for each in self.shards:
            each.lost_answers = lost_answers
        self._shards_failed = lost_answers > 0

    def start_streams(self, place: int) -> StreamsProcess:
        self._starts += 1
        name = f"streams-{place}/{self._starts}"
        streams = StreamsProcess(name, self.group, self.broker, self.shards, self.stores[place], self._without)
        self.streams[place : place + 1] = [streams]
        return streams

    def start_api(self, place: int) -> ApiProcess:
        if place < len(self.apis):
            self.apis[place].stopped()
        api = ApiProcess(f"api-{place}", self.broker, self.shards, self.history, self._polls)
        self.apis[place : place + 1] = [api]
        return api

    def start_relay(self, place: int) -> Relay:
        relay = Relay(self.shards[place], self.broker, self.history, self._without)
        self.relays[place : place + 1] = [relay]
        return relay

    def start_worker(self, place: int) -> Worker:
        self._starts += 1
        name, careless = f"worker-{place}/{self._starts}", self._careless
        worker = Worker(name, self.network, QUEUES, self.entries, self._visibility_s, careless)
        self.workers[place : place + 1] = [worker]
        return worker

    def new_mover(self) -> Mover:
        self.movers.append(Mover(f"mover-{len(self.movers)}", self.scheduler, self.shards))
        return self.movers[-1]

    def settle(self, partition: int) -> None:
        mover = self.new_mover()
        self.scheduler.spawn(mover.settle(partition), mover.process)

    def run(self) -> Outcome:
        crash: list[Violation] = []
        try:
            self.scheduler.run(HEAL_US, lambda: False)
            self._heal()
            self.scheduler.run(HEAL_US + CONVERGES_US, lambda: not self._left(first=True))
        except Crashed as error:
            crash = [Violation("nothing_crashes", "a task", str(error))]
        finally:
            self.scheduler.close()
        self._shards_failed |= any("Shard" in what for _, what in self.faults.log)
        seen = Seen(
            self.commits, self.entries, self.broker.events, self.producer.sent, self._left(),
            sum(shard.locks.deadlocks for shard in self.shards), self._shards_failed,
        )  # fmt: skip
        return Outcome(self.seed, crash or judge(seen), seen, self.faults.log, self.scheduler.steps)

    def _heal(self) -> None:
        self.faults.heal()
        for shard in self.shards:
            shard.lost_answers = 0.0
        if len(self.shards) > 1:
            for partition in range(PARTITIONS):
                self.settle(partition)

    def _left(self, *, first: bool = False) -> list[str]:
        """What is not over; the first that is found, or all of it."""
        left: list[str] = []
        if self.producer.under_way:
            left.append("producer: is not done")
        for partition, log in enumerate(self.broker.commands):
            placement: Placement = self.shards[0].tables["placements"][partition]
            row = self.shards[placement.shard].tables["partitions"].get(partition)
            if row is None or row.moved is not None:
                left.append(f"partition {partition}: is not open on shard {placement.shard}: {row}")
            elif row.consumed_offset < len(log):
                left.append(f"partition {partition}: consumed {row.consumed_offset} of {len(log)} commands")
            if first and left:
                return left
        for shard in self.shards:
            for run in shard.tables["runs"].values():
                left.append(f"run {run.run_id}: is {run.state} on shard {shard.number}, due {run.due_at}")
            for job in shard.tables["jobs"].values():
                if job.state == "active" and job.next_fire_at and "everySeconds" in job.definition:
                    left.append(f"job {job.job_id}: {job.next_fire_at} is pending")
            if shard.outbox:
                left.append(f"outbox {shard.number}: {len(shard.outbox)} events wait")
            if first and left:
                return left
        return left


@dataclass(frozen=True)
class Outcome:
    """Of a simulation. faults: what was done when."""

    seed: int
    violations: list[Violation]
    seen: Seen
    faults: list[tuple[int, str]]
    steps: int

    def digest(self) -> str:
        """The same for the same seed and code, whatever the machine is doing."""
        trace = hashlib.blake2b(digest_size=12)
        for commit in self.seen.commits:
            told = [(each.event, each.run_id and each.run_id.int, each.version) for each in commit.told]
            trace.update(repr((commit.at_us, commit.shard, commit.claims, told)).encode())
        for entry in self.seen.entries:
            trace.update(f"{entry.kind} {entry.at} {entry.worker} {entry.token} {entry.status}".encode())
        return trace.hexdigest()


def simulate(seed: int, without: str | None = None, only: Sequence[str] = ()) -> Outcome:
    return World(seed, without, only).run()
