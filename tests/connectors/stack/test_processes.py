"""Processes are known by pid and start time, end within their deadline and leave nothing behind."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from connectors.stack.errors import StackError
from connectors.stack.processes import Process, end, kill, spawn, wait_until

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
DEAF = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]
PARENT = [
    sys.executable,
    "-c",
    "import subprocess, sys, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)",
]


class Nursery:
    """Starts processes whose first line says that they are up; kills at the end what a test left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.started: list[Process] = []

    def start(self, argv: list[str]) -> tuple[Process, str]:
        log = self._folder / f"{len(self.started)}.log"
        process = spawn(argv, log)
        self.started.append(process)
        assert wait_until(lambda: log.read_text().endswith("\n"), 20)
        return process, log.read_text().strip()


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path)
    yield nursery
    kill([member for process in nursery.started for member in process.tree()])


def test_a_recycled_pid_is_neither_alive_nor_signalled(nursery: Nursery) -> None:
    process, _ = nursery.start(SLEEPER)
    earlier_life = replace(process, started_at=process.started_at - 60)
    assert not earlier_life.alive()
    assert not earlier_life.send(signal.SIGKILL)
    assert earlier_life.tree() == []
    kill([earlier_life])
    end([earlier_life], deadline_s=0)
    assert process.alive()


def test_a_process_that_ended_by_itself_is_not_alive(nursery: Nursery) -> None:
    process, _ = nursery.start([sys.executable, "-c", "print('done')"])
    assert wait_until(lambda: not process.alive(), 20)
    assert not process.send(signal.SIGTERM)


def test_end_lets_a_process_finish_and_kills_one_that_ignores_it(nursery: Nursery) -> None:
    polite, _ = nursery.start(SLEEPER)
    deaf, _ = nursery.start(DEAF)
    end([polite, deaf], deadline_s=0.2)
    assert not polite.alive()
    assert not deaf.alive()


def test_end_wakes_a_frozen_process_so_that_it_can_finish(nursery: Nursery) -> None:
    process, _ = nursery.start(SLEEPER)
    process.send(signal.SIGSTOP)
    assert wait_until(process.frozen, 20)
    began = time.monotonic()
    end([process], deadline_s=60)
    assert not process.alive()
    assert time.monotonic() - began < 30


def test_end_takes_the_children_along(nursery: Nursery) -> None:
    parent, child_pid = nursery.start(PARENT)
    child = Process.of(int(child_pid))
    end([parent], deadline_s=5)
    assert not child.alive()


def test_what_a_dead_process_left_behind_is_still_found(nursery: Nursery) -> None:
    parent, child_pid = nursery.start(PARENT)
    child = Process.of(int(child_pid))
    parent.send(signal.SIGKILL)
    assert wait_until(lambda: not parent.alive(), 20)
    assert child.alive()
    end([parent], deadline_s=5)
    assert not child.alive()


def test_spawn_hands_on_the_environment_and_appends_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    log.write_text("before\n")
    process = spawn([sys.executable, "-c", "import os; print(os.environ['FENCE'])"], log, {"FENCE": "post"})
    assert wait_until(lambda: not process.alive(), 20)
    assert log.read_text() == "before\npost\n"


def test_kill_says_so_when_a_process_does_not_go(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    process, _ = nursery.start(SLEEPER)
    monkeypatch.setattr("connectors.stack.processes.KILL_DEADLINE_S", 0.0)
    monkeypatch.setattr(Process, "send", lambda *_: False)
    with pytest.raises(StackError, match=str(process.pid)):
        kill([process])
    monkeypatch.undo()
