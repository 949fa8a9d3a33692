"""An installation is behind while runs are overdue, and while its ledger cannot be looked at."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.chaos.backlog import spells_behind
from tests.chaos.history import EpochSample
from tests.chaos.job_rules import Fault

BEGAN = datetime(2026, 3, 1, 9, tzinfo=UTC)


def sample(seconds: float, overdue: int = 0) -> EpochSample:
    return EpochSample(BEGAN + timedelta(seconds=seconds), {}, overdue)


def test_an_installation_is_behind_from_the_sample_with_something_overdue_to_the_next_one() -> None:
    samples = [sample(0), sample(0.2, overdue=3), sample(0.4), sample(0.6)]
    assert spells_behind(samples) == [Fault(samples[1].at, samples[2].at)]


def test_it_may_have_been_behind_while_nobody_could_look() -> None:
    samples = [sample(0), sample(0.9), sample(4), sample(4.2)]
    assert spells_behind(samples) == [Fault(samples[1].at, samples[2].at)]
