"""One target, fed for a while: how many inputs it took, and the first that it did not."""

from __future__ import annotations

import gc
import random
import resource
import time
from collections.abc import Callable
from typing import Any

import psutil
from hypothesis import HealthCheck, Phase, given, seed, settings
from msgspec import Struct

from tests.fuzz.targets import Target

SLOW_S = 1.0  # of processor time, which does not depend on what else the machine does
INPUT_MAX_BYTES = 64 * 2**20
GROWTH_MAX_BYTES = 48 * 2**20  # in the second half of a trial, when every cache of the product is warm
BATCH = 2_000  # after so many inputs Hypothesis begins anew, so that its own memory is not measured

Noted = Callable[[Any], None]


class Finding(Struct):
    """The smallest input found that the target cannot take, and why."""

    value: Any
    reason: str


class Report(Struct):
    """slowest_s: processor time of one input. growth_bytes: of resident memory, in the second half."""

    tried: int = 0
    slowest_s: float = 0.0
    growth_bytes: int = 0
    finding: Finding | None = None


class _Enough(BaseException):
    """Ends a trial in the middle of a batch: Hypothesis lets it pass."""


class Trial:
    """noted: hears of each input before the target does."""

    def __init__(self, target: Target, noted: Noted = lambda _: None) -> None:
        self._target = target
        self._noted = noted
        self._until: Callable[[], bool] = lambda: False
        self.report = Report()

    def run(self, *, seeded: int, seconds: float = float("inf"), inputs: int = 2**63) -> Report:
        """Feed it until one of both is used up, or something is found."""
        began = time.monotonic()
        middle_rss = 0
        dice = random.Random(seeded)
        self._until = lambda: time.monotonic() - began >= seconds or self.report.tried >= inputs
        try:
            while not self.report.finding:
                if not middle_rss and time.monotonic() - began >= seconds / 2:
                    middle_rss = _rss()
                self._batch(dice.getrandbits(64))
        except _Enough:
            pass
        if middle_rss and not self.report.finding:
            self.report.growth_bytes = max(0, _rss() - middle_rss)
            if self.report.growth_bytes > GROWTH_MAX_BYTES:
                self.report.finding = Finding(None, "memory grows with the number of inputs")
        return self.report

    def _batch(self, seeded: int) -> None:
        @seed(seeded)
        @settings(
            max_examples=BATCH,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )
        @given(self._target.inputs)
        def feed(value: Any) -> None:
            self.feed(value)

        try:
            feed()
        except Exception:
            if self.report.finding is None:  # it is not of the target, but of what makes its inputs
                raise

    def feed(self, value: Any) -> None:
        """Try one input. What is found is kept; an exception of the target is raised, to be shrunk."""
        if self._until() and not self.report.finding:
            raise _Enough
        self._noted(value)
        before, began = _peak_bytes(), time.thread_time()
        try:
            self._target.feed(value)
        except self._target.refusals:
            pass
        except Exception as error:
            self._found(value, f"{type(error).__name__}: {error}"[:500])
            raise
        took_s, grown = time.thread_time() - began, _peak_bytes() - before
        self.report.tried += 1
        self.report.slowest_s = max(self.report.slowest_s, took_s)
        if took_s > SLOW_S:
            self._found(value, f"it took {took_s:.1f} s")
            raise _Enough  # not shrunk: that takes as long each time
        if grown > INPUT_MAX_BYTES:
            self._found(value, f"it took {grown / 2**20:.0f} MiB")
            raise _Enough

    def _found(self, value: Any, reason: str) -> None:
        known = self.report.finding
        if known is None or len(repr(value)) <= len(repr(known.value)):
            self.report.finding = Finding(value, reason)


def _rss() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
