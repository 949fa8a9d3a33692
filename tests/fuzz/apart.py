"""A trial in a process of its own: its memory is its own, and it can be ended when it hangs or dies of an input."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import time
from multiprocessing.connection import Connection
from tempfile import NamedTemporaryFile
from typing import IO, Any

from tests.fuzz.targets import TARGETS
from tests.fuzz.trial import Finding, Report, Trial

HANGING_S = 30.0  # of waiting for one input, after which its process is ended
LOOK_EVERY_S = 0.5
MEMORY_MAX_BYTES = 4 * 2**30


def trial_apart(name: str, *, seeded: int, seconds: float) -> Report:
    """Feed a target for so long. What its process dies or hangs of is a finding, too."""
    with NamedTemporaryFile() as file:
        last = LastInput(file)
        report = _fed(name, seeded, seconds, last)
        if report is None:
            tried, value = last.read()
            report = Report(tried=tried, finding=Finding(value, f"its process died, or hung for {HANGING_S:g} s"))
    return report


class LastInput:
    """What a process is being fed with, in a file: whoever ends it can tell, though it does not answer any more."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._count = 0

    @property
    def path(self) -> str:
        return str(self._file.name)

    def note(self, value: Any) -> None:
        self._count += 1
        content = pickle.dumps((self._count, value))
        os.pwrite(self._file.fileno(), len(content).to_bytes(8) + content, 0)

    def read(self) -> tuple[int, Any]:
        size = int.from_bytes(os.pread(self._file.fileno(), 8, 0))
        content = os.pread(self._file.fileno(), size, 8)
        try:
            found: tuple[int, Any] = pickle.loads(content) if size else (0, None)
        except (EOFError, pickle.UnpicklingError):  # while it is written
            return -1, None
        return found


def _fed(name: str, seeded: int, seconds: float, last: LastInput) -> Report | None:
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_feed, args=(name, seeded, seconds, last.path, sending))
    process.start()
    sending.close()
    count, since = 0, time.monotonic()
    while not receiving.poll(LOOK_EVERY_S):
        now_at, _ = last.read()
        if now_at != count or now_at == 0:
            count, since = now_at, time.monotonic()
        elif time.monotonic() - since > HANGING_S:
            process.kill()
            break
    try:
        report: Report | None = receiving.recv()
    except EOFError:
        report = None
    process.join()
    return report


def _feed(name: str, seeded: int, seconds: float, path: str, sending: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX_BYTES, MEMORY_MAX_BYTES))  # what asks for more, dies of it
    with open(path, "r+b", buffering=0) as file:
        sending.send(Trial(TARGETS[name], LastInput(file).note).run(seeded=seeded, seconds=seconds))
