"""A load of all kinds while things are broken: one-offs and what recurs, with every policy; handlers that fail, are
slow or never succeed; jobs that are paused, edited and triggered meanwhile.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count, product
from typing import Any
from uuid import UUID

import msgspec
import psycopg

from fencepost import CommandProducer, JobSpec, Schedule, at, every
from tests.chaos.job_rules import Edited, Still
from tests.chaos.load_worker import Work

ATTEMPTS = 100  # faults use them up, too, and what is to be completed must be
DOOMED_ATTEMPTS = 3
LEAD_S = (1.0, 8.0)
SEEN_WITHIN_S = 12.0
EDITABLE_EVERY_S, EDITED_EVERY_S = 3, 86_400
OVERLAPS, CATCH_UPS = ("allow", "skip", "replace"), ("latest", "all", "none")
LANES = ("high", "normal", "normal", "low")
# How often handlers are of a kind, in a hundred.
QUICK, FAILING, SLOW = 93, 4, 2


class Load:
    """Begins with start, ends with end. The instants at which something happens are not its seed's: faults see to that.

    one_offs: those that must be completed, with the instant that was asked for. dsn: for looking, never for writing.
    """

    def __init__(self, producer: CommandProducer, queue: str, dsn: str, seed: int, per_s: float) -> None:
        self.queue, self.one_offs = queue, dict[str, datetime]()
        self.doomed, self.recurring = dict[str, int](), set[str]()
        self.still, self.edited = list[Still](), list[Edited]()
        self._producer, self._dsn, self._per_s = producer, dsn, per_s
        self._chance = random.Random(f"load {seed}")
        self._operators_chance = random.Random(f"operators {seed}")
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._lock = threading.Lock()
        self._pausable, self._editable, self._triggered = list[UUID](), list[UUID](), list[UUID]()
        self._threads = [
            threading.Thread(target=self._until_stopped, args=(work,), daemon=True)
            for work in (self._create_one_offs, self._operate)
        ]

    @property
    def jobs(self) -> set[str]:
        """All of them."""
        with self._lock:
            return {*self.one_offs, *self.doomed, *self.recurring}

    def start(self) -> None:
        self._create_recurring()
        for thread in self._threads:
            thread.start()

    def spike(self, how_many: int, within_s: float) -> None:
        """So many one-offs at once, due within the next seconds."""
        for number in range(how_many):
            self._one_off(0.5 + within_s * number / how_many)

    def end(self) -> None:
        """Nothing new, and what recurs is deleted. Raises what failed meanwhile."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failed:
            raise self._failed[0]
        for job in self.recurring:
            self._producer.delete(UUID(job))
        self._producer.flush()

    def _until_stopped(self, work: Callable[[], Iterator[float]]) -> None:
        """work: yields how long to wait before it goes on."""
        try:
            for wait_s in work():
                if self._stop.wait(wait_s):
                    return
        except BaseException as error:
            self._failed.append(error)

    # --- one-offs ---

    def _create_one_offs(self) -> Iterator[float]:
        began = time.monotonic()
        for number in count():
            self._one_off(self._chance.uniform(*LEAD_S))
            yield max(0.0, began + (number + 1) / self._per_s - time.monotonic())

    def _one_off(self, due_in_s: float) -> None:
        due, kind = datetime.now(UTC) + timedelta(seconds=due_in_s), self._chance.randrange(100)
        if kind < QUICK:
            job = self._create(at(due), Work(self._chance.uniform(0, 0.05)))
        elif kind < QUICK + FAILING:
            job = self._create(at(due), Work(fails=self._chance.randint(1, 2)))
        elif kind < QUICK + FAILING + SLOW:
            job = self._create(at(due), Work(self._chance.uniform(5, 9)))  # longer than a lease without heartbeats
        else:
            doomed = self._create(at(due), Work(fails=ATTEMPTS), max_attempts=DOOMED_ATTEMPTS)
            with self._lock:
                self.doomed[str(doomed)] = DOOMED_ATTEMPTS
            return
        with self._lock:
            self.one_offs[str(job)] = due

    def _create(self, schedule: Schedule, work: Work, **terms: Any) -> UUID:
        spec: dict[str, Any] = {
            **{"max_attempts": ATTEMPTS, "retry_backoff": "fixed", "retry_base_seconds": 1.0},
            **{"lane": self._chance.choice(LANES), "payload": msgspec.to_builtins(work)},
        }
        return self._producer.create_job(JobSpec(queue=self.queue, schedule=schedule, **(spec | terms)))

    # --- what recurs ---

    def _create_recurring(self) -> None:
        for overlap, catch_up in product(OVERLAPS, CATCH_UPS):
            for every_s, work_s in ((1, 0.02), (2, 2.5), (5, 0.5)):
                job = self._recur(every_s, Work(work_s), overlap=overlap, catch_up=catch_up, catch_up_limit=100)
                if overlap == "allow" and every_s == 5:
                    self._triggered.append(job)
        for _ in range(4):
            self._pausable.append(self._recur(1, Work()))
            self._editable.append(self._recur(EDITABLE_EVERY_S, Work()))
        self._recur(2, Work(), start_deadline_seconds=3.0)

    def _recur(self, every_s: int, work: Work, **terms: Any) -> UUID:
        job = self._create(every(every_s), work, **terms)
        self.recurring.add(str(job))
        return job

    # --- operators ---

    def _operate(self) -> Iterator[float]:
        """One job after the other: of each a pause (or edit) that is seen to hold, and is over before the next."""
        chance = self._operators_chance
        while True:
            yield chance.uniform(0.5, 2)
            self._producer.trigger(chance.choice(self._triggered))
            yield from self._pause(chance.choice(self._pausable), chance.uniform(1, 5))
            yield from self._edit(chance.choice(self._editable), chance.uniform(3, 6))

    def _pause(self, job: UUID, length_s: float) -> Iterator[float]:
        since: datetime | None = None
        self._producer.pause(job)
        try:
            since = yield from self._seen("SELECT 1 FROM jobs WHERE job_id = %s AND state = 'paused'", job)
            yield length_s
        finally:
            if since is not None:
                self.still.append(Still(frozenset({str(job)}), since, datetime.now(UTC)))
            self._producer.resume(job)

    def _edit(self, job: UUID, length_s: float) -> Iterator[float]:
        since: datetime | None = None
        self._producer.update(job, JobSpec(queue=self.queue, schedule=every(EDITED_EVERY_S), max_attempts=ATTEMPTS))
        try:
            asked = "SELECT 1 FROM jobs WHERE job_id = %s AND definition::jsonb -> 'schedule' ->> 'everySeconds' = %s"
            since = yield from self._seen(asked, job, str(EDITED_EVERY_S))
            yield length_s
        finally:
            if since is not None:
                self.edited.append(Edited(str(job), since, datetime.now(UTC)))
            self._producer.update(
                job, JobSpec(queue=self.queue, schedule=every(EDITABLE_EVERY_S), max_attempts=ATTEMPTS)
            )

    def _seen(self, sql: str, *parameters: Any) -> Generator[float, None, datetime | None]:
        """Look until the ledger says so; the instant at which it did, or None when it does not come."""
        until = time.monotonic() + SEEN_WITHIN_S
        while time.monotonic() < until:
            with suppress(psycopg.Error), psycopg.connect(self._dsn, autocommit=True, connect_timeout=2) as conn:
                if conn.execute(sql, parameters).fetchone():
                    return datetime.now(UTC)
            yield 0.1
        return None
