"""One part of the stack: a named process with its log, remembered in the state folder's register."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from connectors.stack.errors import PartFailed
from connectors.stack.health import Health
from connectors.stack.logs import log_path, size, tail
from connectors.stack.processes import POLL_S, Process, end, kill, spawn, wait_until
from connectors.stack.register import PartRecord, Register

Say = Callable[[str], None]
REMIND_S = 5.0
DIED = "ended while it was starting"


def silent(_: str) -> None:
    """For a caller that wants no progress lines."""


class Part:
    """Starts, watches and ends one process. Any process that opens the same state folder sees the same part."""

    def __init__(self, name: str, state_dir: Path, say: Say = silent) -> None:
        self.name = name
        self.register = Register(state_dir)
        self.log = log_path(state_dir, name)
        self._say = say

    @property
    def process(self) -> Process | None:
        """The running process, or None."""
        return self.register.running(self.name)

    @property
    def pid(self) -> int | None:
        process = self.process
        return process.pid if process else None

    def say(self, text: str) -> None:
        self._say(f"{self.name}: {text}")

    def launch(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        health_url: str | None = None,
        flavour: str | None = None,
    ) -> None:
        """Spawn it and remember it. Raises PartFailed if the program cannot be run."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        offset = size(self.log)
        try:
            process = spawn(argv, self.log, env)
        except OSError as error:
            raise PartFailed(self.name, f"cannot run {argv[0]}: {error.strerror}") from error
        self.register.put(self.name, PartRecord(process.pid, process.started_at, port, health_url, offset, flavour))

    def await_ready(self, probe: Callable[[], Health], deadline_s: float) -> Health:
        """Probe until healthy, with a reminder every few seconds. Raises PartFailed when it dies or takes too long."""
        began = time.monotonic()
        remind_at = began + REMIND_S
        while not (health := probe()).ok:
            now = time.monotonic()
            if self.process is None:
                raise self.failure(DIED)
            if now - began > deadline_s:
                raise self.failure(f"not ready after {deadline_s:.0f} s: {health.detail}")
            if now > remind_at:
                self.say(f"still starting, {now - began:.0f} s")
                remind_at += REMIND_S
            time.sleep(POLL_S)
        self.say(f"ready in {time.monotonic() - began:.1f} s")
        return health

    def await_settled(self, settle_s: float) -> None:
        """For a part that cannot be asked: it is started when it still runs after a while. Raises PartFailed."""
        if wait_until(lambda: self.process is None, settle_s):
            raise self.failure(DIED)
        self.say("running")

    def failure(self, reason: str) -> PartFailed:
        """The error to raise for this part, with what it has logged since it was started."""
        record = self.register.part(self.name)
        return PartFailed(self.name, reason, tail(self.log, record.log_offset if record else 0))

    def end(self, deadline_s: float, sig: int = signal.SIGTERM) -> None:
        """Ask it to end, then kill it after the deadline. Nothing happens if it is not running."""
        record = self.register.part(self.name)
        if record is not None:
            end([record.process], deadline_s, sig)
            self.register.forget(self.name)

    def kill(self) -> None:
        """SIGKILL it with everything it started, and wait until they are gone. `status` shows it as dead."""
        record = self.register.part(self.name)
        if record is not None:
            kill(record.process.tree())
