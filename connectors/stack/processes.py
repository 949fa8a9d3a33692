"""Detached child processes, known by pid and start time so that a recycled pid is never signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from connectors.stack.errors import StackError

# psutil derives the start time from the boot time, which moves a little when the clock is stepped.
START_TIME_TOLERANCE_S = 1.0
POLL_S = 0.02
KILL_DEADLINE_S = 10.0

# Children of this very process must be reaped by it, or they stay behind as zombies after they end.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Process:
    """One life of a process: its pid, and when the kernel says it began (Unix seconds)."""

    pid: int
    started_at: float

    @classmethod
    def of(cls, pid: int) -> Process:
        """Identify a process that runs now. Raises psutil.NoSuchProcess."""
        return cls(pid, psutil.Process(pid).create_time())

    def alive(self) -> bool:
        return self._find() is not None

    def frozen(self) -> bool:
        """Stopped by SIGSTOP: alive, but doing nothing."""
        found = self._find()
        return found is not None and found.status() == psutil.STATUS_STOPPED

    def send(self, sig: int) -> bool:
        """Signal this life of the process. False if it has ended, even when its pid is used by another."""
        found = self._find()
        if found is None:
            return False
        try:
            found.send_signal(sig)
        except psutil.NoSuchProcess:
            return False
        return True

    def tree(self) -> list[Process]:
        """This process, itself first, and everything it started; what it left behind once it has ended."""
        found = self._find()
        members = [self] if found else []
        if found is not None:
            members += _identify(found.children(recursive=True))
        return list(dict.fromkeys([*members, *self._session()]))

    def _session(self) -> list[Process]:
        """What runs in the session it leads. The kernel gives its pid to nobody while such a process lives."""
        if psutil.pid_exists(self.pid) and not self.alive():
            return []  # the pid belongs to somebody else by now, so nothing of the session is left
        members = [found for found in psutil.process_iter() if _session_of(found.pid) == self.pid]
        return [member for member in _identify(members) if member.started_at >= self.started_at]

    def _find(self) -> psutil.Process | None:
        _reap(self.pid)
        try:
            found = psutil.Process(self.pid)
            same = abs(found.create_time() - self.started_at) < START_TIME_TOLERANCE_S
            return found if same and not _ended(found) else None
        except psutil.NoSuchProcess:
            return None


def spawn(argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> Process:
    """Start a process in its own session, so that it outlives this one; its output is appended to the log."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            argv,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _children[child.pid] = child
    return Process.of(child.pid)


def wait_until(condition: Callable[[], bool], deadline_s: float) -> bool:
    """Look until the condition holds. False when the deadline passed first."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True


def end(processes: Sequence[Process], deadline_s: float, sig: int = signal.SIGTERM) -> None:
    """Ask all at once to end, give them the deadline together, then kill them and whatever they left running."""
    trees = [member for process in processes for member in process.tree()]
    for process in processes:
        process.send(sig)
        process.send(signal.SIGCONT)  # a frozen process would only see the signal after it is thawed
    wait_until(lambda: not any(process.alive() for process in processes), deadline_s)
    kill([*trees, *(member for process in processes for member in process.tree())])


def kill(processes: Sequence[Process]) -> None:
    """SIGKILL all of them and wait until they are gone. Raises StackError if the kernel does not let go of one."""
    for process in processes:
        process.send(signal.SIGKILL)
    if not wait_until(lambda: not any(process.alive() for process in processes), KILL_DEADLINE_S):
        left = [process.pid for process in processes if process.alive()]
        raise StackError(f"still there after SIGKILL: {left}")


def _identify(found: Sequence[psutil.Process]) -> list[Process]:
    """Those that still live."""
    identified = []
    for process in found:
        with suppress(psutil.NoSuchProcess):  # ended while we were looking
            if not _ended(process):
                identified.append(Process(process.pid, process.create_time()))
    return identified


def _ended(process: psutil.Process) -> bool:
    """A zombie, with no other thread left: until the last one of a JVM is gone, its sockets are still open."""
    return process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _reap(pid: int) -> None:
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        _children.pop(pid, None)
