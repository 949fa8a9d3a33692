"""Does what was planned, each fault in its time, and tells the timeline when it began and when it was over."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from connectors.stack import StackError
from tests.chaos.fault_plan import PlannedFault
from tests.chaos.job_rules import Fault
from tests.chaos.stage import Stage
from tests.chaos.timeline import Timeline

QUOTA_LOOK_S = 0.3
STORM_STAYS_S = 2.5
SPIKE, SPIKE_WITHIN_S = 1500, 3.0


class Faults:
    """spike: makes so many one-offs due within so many seconds. happened: of every fault, from its begin to its end.

    failures: of the harness itself, which is to heal and judge all the same.
    """

    def __init__(self, stage: Stage, timeline: Timeline, spike: Callable[[int, float], None]) -> None:
        self.happened: list[Fault] = []
        self.failures: list[str] = []
        self._stage, self._timeline, self._spike = stage, timeline, spike

    def carry_out(self, planned: list[PlannedFault]) -> None:
        """All of them, from now on; returns when the last one is over."""
        began = time.monotonic()
        with ThreadPoolExecutor(len(planned) or 1) as pool:
            for fault in planned:
                time.sleep(
                    max(0.0, began + fault.at_s - time.monotonic())
                )  # the plan's instant: nothing else tells of it
                pool.submit(self._one, fault)

    def _one(self, fault: PlannedFault) -> None:
        self._timeline.fault(str(fault))
        since = datetime.now(UTC)
        try:
            getattr(self, f"_{fault.kind}")(fault)
        except StackError as error:
            # A role may well not come up while something else is broken: the supervisor goes on trying.
            self._timeline.note(f"{fault.kind} of {', '.join(fault.targets)}: {str(error).splitlines()[0]}")
        except Exception as error:
            self.failures.append(f"{fault}: {type(error).__name__}: {error}")
            self._timeline.note(f"THE HARNESS FAILED: {self.failures[-1]}")
        self.happened.append(Fault(since, datetime.now(UTC)))
        self._timeline.note(f"over: {fault.kind.replace('_', ' ')} of {', '.join(fault.targets)}")

    def _kill(self, fault: PlannedFault) -> None:
        for part in fault.targets:
            self._stage.kill(part)
        _last(fault)
        self._stage.start_all(fault.targets)

    def _freeze(self, fault: PlannedFault) -> None:
        [part] = fault.targets
        self._stage.freeze(part)
        _last(fault)
        self._stage.thaw(part)

    def _restart(self, fault: PlannedFault) -> None:
        [part] = fault.targets
        self._stage.stop(part)
        _last(fault)
        self._stage.start(part)

    def _cut(self, fault: PlannedFault) -> None:
        self._hurt_link(fault, self._stage.links[fault.targets[0]].cut)

    def _silence(self, fault: PlannedFault) -> None:
        self._hurt_link(fault, self._stage.links[fault.targets[0]].silence)

    def _delay(self, fault: PlannedFault) -> None:
        self._hurt_link(fault, lambda: self._stage.links[fault.targets[0]].delay(fault.amount))

    def _hurt_link(self, fault: PlannedFault, hurt: Callable[[], None]) -> None:
        hurt()
        _last(fault)
        self._stage.links[fault.targets[0]].open()

    def _drop_heartbeats(self, fault: PlannedFault) -> None:
        [worker] = fault.targets
        self._stage.send(worker, signal.SIGUSR1)
        _last(fault)
        self._stage.send(worker, signal.SIGUSR2)

    def _fill_disk(self, fault: PlannedFault) -> None:
        """No file of the process can grow, nor one of those that take its place."""
        [role] = fault.targets
        until = time.monotonic() + fault.length_s
        while time.monotonic() < until:
            self._stage.limit_files(role, 0)
            time.sleep(QUOTA_LOOK_S)  # a process that takes the role's place is found by looking
        self._stage.limit_files(role, -1)

    def _skew_clock(self, fault: PlannedFault) -> None:
        [role] = fault.targets
        self._stage.clocks.set(role, fault.amount)
        _last(fault)
        self._stage.clocks.set(role, 0)

    def _storm(self, fault: PlannedFault) -> None:
        """Owners join and leave, again and again: each time the group shares its partitions anew."""
        until = time.monotonic() + fault.length_s
        while time.monotonic() < until:
            for extra in fault.targets:
                self._stage.start(extra)
            time.sleep(
                STORM_STAYS_S
            )  # long enough to join; whether it has got partitions yet is what a storm leaves open
            for extra in fault.targets:
                self._stage.stop(extra)

    def _deploy(self, fault: PlannedFault) -> None:
        """Every role is replaced, one after the other, and meanwhile a lot comes due at once."""
        for number, role in enumerate(fault.targets):
            if number == 1:
                self._spike(SPIKE, SPIKE_WITHIN_S)
            self._stage.stop(role)
            self._stage.start(role)


def _last(fault: PlannedFault) -> None:
    """A fault takes as long as the plan says, which its seed made: nothing else tells when it is over."""
    time.sleep(fault.length_s)
