"""The comparison of explanations finds what it is there to find."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.chaos.explanations import first_leases, problems_of
from tests.chaos.history import TopicEvent

DUE = datetime(2026, 3, 1, 9, tzinfo=UTC)
LEASE = TopicEvent("e", "run_leased", DUE + timedelta(seconds=2), "job", "run", 2, due_at=DUE)
PAUSED = {
    **{"from": "2026-03-01T09:00:00Z", "to": "2026-03-01T09:00:01.500000Z", "ms": 1500.0},
    **{"cause": "queue_paused", "late": True},
}
WAITED = {
    **{"from": "2026-03-01T09:00:01.500000Z", "to": "2026-03-01T09:00:02Z", "ms": 500.0},
    **{"cause": "no_worker_asked", "late": True},
}
RIGHT: dict[str, Any] = {"latenessMs": 2000.0, "incomplete": False, "intervals": [PAUSED, WAITED]}


def test_an_explanation_that_adds_up_has_no_problem() -> None:
    assert problems_of(RIGHT, LEASE) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"incomplete": True}, "the history was behind"),
        ({"latenessMs": 2000.001}, "latenessMs is 2000.001"),
        ({"intervals": [PAUSED]}, "sum up to 1500000"),
        ({"intervals": [PAUSED | {"ms": 1500.001}, WAITED]}, "not as long as it says"),
        ({"intervals": [PAUSED, WAITED | {"from": "2026-03-01T09:00:01.6Z"}]}, "gap"),
        ({"intervals": [PAUSED | {"from": "2026-03-01T09:00:00.1Z"}, WAITED]}, "does not begin when it was due"),
    ],
)
def test_what_does_not_add_up_is_found(change: dict[str, Any], problem: str) -> None:
    assert any(problem in found for found in problems_of(RIGHT | change, LEASE))


def test_the_first_lease_of_a_run_is_told_by_its_version() -> None:
    again = TopicEvent("f", "run_leased", DUE, "job", "run", 4, due_at=DUE)
    assert first_leases([again, LEASE, again]) == {"run": LEASE}
