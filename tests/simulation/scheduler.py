"""Virtual time: tasks of processes, one step after the other, in an order that the seed alone decides.

A task is a coroutine, of the product or of an actor, that gives way where it would wait: for a time, for a lock, for an
answer. Between two of its steps others run, and the clock stands still while any of them does.
"""

from __future__ import annotations

import heapq
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
START_US = int(START.timestamp()) * 1_000_000
SECOND_US = 1_000_000

Work = Coroutine[Any, Any, Any] | Generator[Any, Any, Any]

_PARK = -1


class Process:
    """What is frozen and killed as one. A frozen one's steps wait until it is thawed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive, self.frozen = True, False
        self.tasks: dict[Task, None] = {}
        self.held: list[tuple[Task, int, Any]] = []


class Task:
    """ticket: of the wait that the task is in; whatever wakes it names the wait, so that a late wake-up is none."""

    __slots__ = ("done", "process", "ticket", "work")

    def __init__(self, work: Work, process: Process | None) -> None:
        self.work, self.process = work, process
        self.ticket, self.done = 0, False


class Crashed(Exception):
    """A task raised what nobody expects of it."""


class Scheduler:
    """now_us: virtual microseconds since 1970. current: the task whose step is under way."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now_us = START_US
        self.steps = 0
        self.current: Task | None = None
        self._tasks: dict[Task, None] = {}
        self._heap: list[tuple[int, int, Task | Callable[[], None], int, Any]] = []
        self._number = 0

    @property
    def now(self) -> datetime:
        return START + timedelta(microseconds=self.now_us - START_US)

    def call_at(self, at_us: int, call: Callable[[], None]) -> None:
        self._push(at_us, call, 0, None)

    def spawn(self, work: Work, process: Process | None = None) -> Task:
        """Begin a task at this instant, behind what is to happen at it already. A dead process begins nothing."""
        task = Task(work, process)
        if process is not None:
            if not process.alive:
                work.close()
                return task
            process.tasks[task] = None
        self._tasks[task] = None
        self._push(self.now_us, task, 0, None)
        return task

    def wake(self, task: Task, value: Any = True) -> None:
        """Let a waiting task go on with this value, at this instant."""
        self._push(self.now_us, task, task.ticket, value)

    def cancel(self, task: Task) -> None:
        """End a task where it waits, as if its process had died."""
        if not task.done and task is not self.current:
            self._end(task)
            task.work.close()

    def freeze(self, process: Process) -> None:
        process.frozen = True

    def thaw(self, process: Process) -> None:
        process.frozen = False
        held, process.held = process.held, []
        for task, ticket, value in held:
            self._push(self.now_us, task, ticket, value)

    def kill(self, process: Process) -> None:
        process.alive = False
        for task in list(process.tasks):
            self.cancel(task)
        process.held.clear()

    def run(self, until_us: int, is_over: Callable[[], bool]) -> None:
        """Step until that instant, or until it is over, which is asked now and then. Raises Crashed."""
        heap = self._heap
        while heap and heap[0][0] <= until_us:
            self.now_us, _, what, ticket, value = heapq.heappop(heap)
            if isinstance(what, Task):
                self._step(what, ticket, value)
            else:
                what()
            self.steps += 1
            if self.steps % 64 == 0 and is_over():
                return

    def close(self) -> None:
        """End every task where it is: nothing runs any more."""
        self.current = None
        for task in list(self._tasks):
            self.cancel(task)
        self._heap.clear()

    def _push(self, at_us: int, what: Task | Callable[[], None], ticket: int, value: Any) -> None:
        self._number += 1
        heapq.heappush(self._heap, (at_us, self._number, what, ticket, value))

    def _step(self, task: Task, ticket: int, value: Any) -> None:
        if task.done or task.ticket != ticket:
            return
        process = task.process
        if process is not None and process.frozen:
            process.held.append((task, ticket, value))
            return
        task.ticket += 1
        outer, self.current = self.current, task
        try:
            wait_us = task.work.send(value if ticket else None)
            while wait_us is None:  # a bare yield of the product's: whoever looks at a wall clock must change nothing
                wait_us = task.work.send(None)
        except StopIteration:
            self._end(task)
            return
        except Exception as error:
            self._end(task)
            raise Crashed(f"{process.name if process else 'server'}: {error!r}") from error
        finally:
            self.current = outer
        if wait_us != _PARK:
            self._push(self.now_us + wait_us, task, task.ticket, None)

    def _end(self, task: Task) -> None:
        task.done = True
        del self._tasks[task]
        if task.process is not None:
            task.process.tasks.pop(task, None)


@types.coroutine
def sleep(wait_us: int) -> Generator[int, Any, Any]:
    """Wait that long, or until somebody wakes the task: then what he gives is returned, else None."""
    return (yield wait_us)


@types.coroutine
def park() -> Generator[int, Any, Any]:
    """Wait until somebody wakes the task; returns what he gives."""
    return (yield _PARK)


class Signal:
    """Something that tasks of one process wait for; it stays set until somebody has come for it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_set = False
        self._waiting: deque[Task] = deque()

    def set(self) -> None:
        self._is_set = True
        while self._waiting:
            self._scheduler.wake(self._waiting.popleft())

    async def wait(self, timeout_us: int | None = None) -> None:
        if not self._is_set:
            task = self._scheduler.current
            assert task is not None
            self._waiting.append(task)
            if timeout_us is None:
                await park()
            else:
                await sleep(timeout_us)
                if task in self._waiting:
                    self._waiting.remove(task)
        self._is_set = False
