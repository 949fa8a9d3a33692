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
_NUMBER = 8  # bytes of a number in the file of the last input


def trial_apart(name: str, *, seeded: int, seconds: float) -> Report:
    """Feed a target for so long. What its process dies or hangs of is a finding, too."""
    with NamedTemporaryFile() as file:
        last = LastInput(file)
        report = _fed(name, seeded, seconds, last)
        if report is None:
            reason = f"its process died, or hung for {HANGING_S:g} s"
            report = Report(tried=last.count(), finding=Finding(last.value(), reason))
    return report


class LastInput:
    """What a process is being fed with, in a file: whoever ends it can tell, though it does not answer any more.

    The count stands before the input and is written after it. It may be read at any time, the input only when
    nobody writes: one that is larger than the one before is there by halves for a while.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._count = 0

    @property
    def path(self) -> str:
        return str(self._file.name)

    def note(self, value: Any) -> None:
        self._count += 1
        content = pickle.dumps(value)
        os.pwrite(self._file.fileno(), len(content).to_bytes(_NUMBER) + content, _NUMBER)
        os.pwrite(self._file.fileno(), self._count.to_bytes(_NUMBER), 0)

    def count(self) -> int:
        """How many there were; 0 before the first."""
        return self._number(0)

    def value(self) -> Any:
        """The last one, once the process that is fed with it has ended."""
        size = self._number(_NUMBER)
        return pickle.loads(os.pread(self._file.fileno(), size, 2 * _NUMBER)) if size else None

    def _number(self, offset: int) -> int:
        return int.from_bytes(os.pread(self._file.fileno(), _NUMBER, offset))


def _fed(name: str, seeded: int, seconds: float, last: LastInput) -> Report | None:
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_feed, args=(name, seeded, seconds, last.path, sending))
    process.start()
    sending.close()
    count, since = 0, time.monotonic()
    while not receiving.poll(LOOK_EVERY_S):
        now_at = last.count()
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
