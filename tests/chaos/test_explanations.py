"""The comparison of explanations finds what it is there to find."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.chaos.explanations import SIGN_AGE_MAX, Beginning, beginnings, misblamed, problems_of
from tests.chaos.history import TopicEvent
from tests.chaos.ownerless import Ownerless, Stop, Takeover, Tenures, tenures

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


def test_the_first_lease_of_a_run_and_its_making_are_told_by_their_versions() -> None:
    again = TopicEvent("f", "run_leased", DUE, "job", "run", 4, due_at=DUE)
    made = TopicEvent("d", "run_scheduled", DUE, "job", "run", 1, due_at=DUE)
    other = TopicEvent("g", "run_scheduled", DUE, "job", "never leased", 1, due_at=DUE)
    assert beginnings([again, LEASE, other, made, again]) == {"run": Beginning(made, LEASE)}


def at(seconds: float) -> datetime:
    return DUE + timedelta(seconds=seconds)


def late(cause: str, since: float, until: float) -> dict[str, Any]:
    """An explanation with one interval of lateness."""
    return {
        "intervals": [
            {"cause": cause, "from": at(since).isoformat(), "to": at(until).isoformat(), "late": True},
            {"cause": "running", "from": at(until).isoformat(), "to": at(60).isoformat(), "late": False},
        ]
    }


MADE_AT = at(2)
# Its owner was killed at 5 and taken over from at 10; at 20 a living owner handed over.
KILLED = Tenures([at(-100), at(10), at(20)], [Ownerless(at(5), at(10))])


@pytest.mark.parametrize(
    "answer",
    [
        late("not_decided", 0, 2),
        late("no_worker_asked", 2, 5),
        late("owner_taking_over", 3, 10),
        late("owner_taking_over", 6, 8),  # leased by a poll before the takeover
        late("no_worker_asked", 10, 60),
        late("owner_taking_over", 18, 20),
    ],
)
def test_a_cause_that_the_faults_can_have_had_is_right(answer: dict[str, Any]) -> None:
    assert [*misblamed(answer, MADE_AT, KILLED)] == []


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (late("not_decided", 0, 2.5), "though it was made"),
        (late("no_worker_asked", 4, 6), "nobody owned it"),
        (late("owner_taking_over", 5 - SIGN_AGE_MAX.total_seconds() - 1, 10), "there was an owner until"),
        (late("owner_taking_over", 20, 21), "there was none after it"),
        (late("queue_paused", 1, 2), "nobody has done"),
    ],
)
def test_a_cause_that_cannot_be_is_found(answer: dict[str, Any], problem: str) -> None:
    [found] = misblamed(answer, MADE_AT, KILLED)
    assert problem in found


def test_a_partition_has_no_owner_from_its_owner_s_first_stop_to_the_next_takeover() -> None:
    takeovers = [Takeover(1, "a", at(0)), Takeover(2, "b", at(0)), Takeover(1, "b", at(10)), Takeover(1, "a", at(20))]
    stops = [Stop("a", at(-1)), Stop("a", at(5)), Stop("a", at(7)), Stop("b", at(6)), Stop("api", at(12))]
    found = tenures(takeovers, stops)
    assert found == {1: Tenures([at(0), at(10), at(20)], [Ownerless(at(5), at(10))]), 2: Tenures([at(0)], [])}
    assert [found[1].last_sign_before(at(10)), found[1].last_sign_before(at(20))] == [at(5), at(20)]
