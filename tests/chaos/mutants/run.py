"""Breaks the product on purpose, again and again, and fails unless the checker finds every mutant out.

    python -m tests.chaos.mutants.run [--only TEXT …] [--at-once N] [--keep FOLDER]

For each trial the product as it is goes first and must pass; then come its mutants. Of all of them the last line tells
the verdict, and the exit code.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from tests.chaos.checker import Violation
from tests.chaos.job_rules import counted
from tests.chaos.mutants.patches import MUTANTS, Mutant, TrialName
from tests.chaos.mutants.trials import TRIALS
from tests.chaos.mutants.workshop import Bench, Workshop

CONVERGE_S = 60.0
CONVERGE_MUTANT_S = 8.0  # many never do


class Case(NamedTuple):
    """A mutant, or without one the product as it is, which must pass."""

    trial: TrialName
    mutant: Mutant | None

    def __str__(self) -> str:
        return self.mutant.name if self.mutant else f"the product as it is, in the trial {self.trial!r}"

    def verdict(self, violations: Sequence[Violation]) -> tuple[bool, str]:
        """Whether it is as it should be, and how that is said."""
        found = counted(violations)
        if self.mutant is None:
            return not violations, f"VIOLATIONS: {found}" if violations else "passes"
        if {each.rule for each in violations} & set(self.mutant.rules):
            return True, f"caught: {found}"
        return False, f"NOT CAUGHT by {' or '.join(self.mutant.rules)}; found: {found or 'nothing'}"


def cases(only: Sequence[str]) -> list[Case]:
    """Those that one of the texts is in; by trial, the product as it is first."""
    mutants = [mutant for mutant in MUTANTS if any(text in f"{mutant.trial}: {mutant.name}" for text in only)]
    trials = [trial for trial in reversed(TRIALS) if any(mutant.trial == trial for mutant in mutants)]
    return [Case(trial, each) for trial in trials for each in (None, *(m for m in mutants if m.trial == trial))]


class Suite:
    """All cases on the benches of a workshop."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._free: SimpleQueue[Bench] = SimpleQueue()
        for bench in workshop.benches:
            self._free.put(bench)

    def run(self, cases: Sequence[Case]) -> bool:
        """Whether all are as they should be; says of each what it was."""
        with ThreadPoolExecutor(len(self._workshop.benches)) as pool:
            return all([*pool.map(self._case, cases)])

    def _case(self, case: Case) -> bool:
        bench, began = self._free.get(), time.monotonic()
        try:
            converge_s = CONVERGE_S if case.mutant is None else CONVERGE_MUTANT_S
            violations = self._workshop.try_out(bench, case.trial, case.mutant, converge_s)
            is_right, said = case.verdict(violations)
        except Exception as error:
            violations, is_right, said = [], False, f"FAILED: {type(error).__name__}: {error}"
        finally:
            self._free.put(bench)
        print(f"{'ok  ' if is_right else 'FAIL'} {time.monotonic() - began:5.1f} s  {case}: {said}", flush=True)
        if not is_right:
            for violation in violations[:10]:
                print(f"       {violation.rule}: {violation.subject}: {violation.detail}", flush=True)
        return is_right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="mutants with one of these texts in trial or name")
    parser.add_argument("--at-once", type=int, default=2, help="mutants tried side by side")
    parser.add_argument("--keep", type=Path, help="a new folder for logs and sources of what fails")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # of the trials' workers: a busy machine is all that they could tell of
    began, wanted = time.monotonic(), cases(options.only)
    with ExitStack() as stack:
        state = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-")))
        workshop = stack.enter_context(Workshop(state, options.at_once, lambda _: None))
        all_right = Suite(workshop).run(wanted)
    mutants = sum(case.mutant is not None for case in wanted)
    verdict = "every mutant is caught, the product passes" if all_right else "NOT as it should be"
    print(
        f"{mutants} mutants, {len(wanted) - mutants} trials of the product: {verdict}; {time.monotonic() - began:.0f} s"
    )
    sys.exit(0 if all_right else 1)


if __name__ == "__main__":
    main()
