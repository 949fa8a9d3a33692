"""How events are taken: what is missing is waited for, what is over forgotten, what is overdue asked about."""

from __future__ import annotations

from datetime import timedelta

from fencepost.verification.certificate import Unchecked
from fencepost.verification.tally import ARRIVAL, LOST
from fencepost.verification.verifier import Verifier
from tests.connectors.client.verification.told import (
    at,
    certificate_of,
    created,
    ended,
    expired,
    judged,
    leased,
    made,
    run_event,
    scheduled,
)

COMPLETED = [scheduled(), leased(2, 1, 1), ended(3, "run_completed", 2, 1)]


def test_an_event_that_is_missing_is_waited_for_as_long_as_it_may_be_on_its_way() -> None:
    verifier = Verifier()
    for event in (COMPLETED[0], COMPLETED[2]):
        verifier.take(event)
    verifier.settle(at(10))
    assert verifier.violations == []
    verifier.take(COMPLETED[1])
    assert [violation.rule for violation in verifier.violations] == [ARRIVAL]

    verifier = Verifier()
    for event in (COMPLETED[0], COMPLETED[2]):
        verifier.take(event)
    verifier.settle(at(18))
    assert {violation.rule for violation in verifier.violations} == {"versions_are_contiguous", "lives_are_legal"}


def test_runs_that_are_over_are_forgotten_a_horizon_later_and_their_jobs_with_them() -> None:
    verifier = Verifier(horizon=timedelta(seconds=60))
    for number in range(1000):
        run_id = f"run-{number}"
        verifier.take(scheduled(run_id=run_id, seconds=number))
        verifier.take(leased(2, number + 1, 1, run_id=run_id))
        verifier.take(ended(3, "run_completed", number + 2, 1, run_id=run_id))
        verifier.forget(at(number))
    assert len(verifier._lives) < 70
    assert certificate_of(verifier).counts.runs == 1000

    one_off = Verifier(horizon=timedelta(0))
    run = made(60, seconds=0)
    for event in (
        created(schedule={"delaySeconds": 60}),
        run,
        leased(2, 60, 1, run_id=run.run_id, due_at=at(60)),
        ended(3, "run_completed", 61, 1, run_id=run.run_id),
    ):
        one_off.take(event)
    one_off.forget(at(100))
    assert not one_off._jobs
    assert not one_off._lives


def test_a_run_from_before_the_range_is_judged_by_its_past_where_that_is_known() -> None:
    verifier = Verifier()
    page = [leased(4, 40, 1)]
    assert verifier.unknown_runs(page) == {"run-1": 4}
    for event in (scheduled(), leased(2, 1, 1), expired(3, 32, 1)):
        verifier.recall(event)
    verifier.take(page[0])
    [violation] = verifier.violations
    assert (violation.rule, len(violation.trace)) == ("tokens_only_grow", 4)
    assert verifier.events == 1


def test_a_run_of_a_job_that_was_seen_from_its_creation_has_no_unknown_past() -> None:
    first = made(60)
    verifier = judged([created(), leased(2, 60, 1, run_id=first.run_id, due_at=at(60))])
    assert {violation.rule for violation in verifier.violations} == {"versions_are_contiguous", "lives_are_legal"}


def test_what_is_overdue_is_asked_about_once_and_the_certificate_tells_what_keeps_it() -> None:
    verifier = Verifier(lost_after=timedelta(minutes=1))
    for event in (scheduled(), scheduled(run_id="b"), leased(2, 1, 1, run_id="b")):
        verifier.take(event)
    assert verifier.settle(at(60)) == []
    waiting, executed = verifier.settle(at(100))
    assert (waiting.run_id, executed.run_id) == ("run-1", "b")
    verifier.explain(waiting, "no worker asks")
    verifier.explain(executed, None)
    assert verifier.settle(at(200)) == []
    [violation] = verifier.violations
    assert (violation.rule, violation.subject, len(violation.trace)) == (LOST, "b", 2)
    assert Unchecked("what is overdue", "no worker asks", 1) in certificate_of(verifier).unchecked


def test_events_of_a_kind_that_is_not_known_are_counted_and_passed_over() -> None:
    made_anyway = certificate_of(judged([*COMPLETED, run_event(4, "unknown", 5)]))
    assert made_anyway.verdict == "holds"
    assert [each.count for each in made_anyway.unchecked if each.what == "events"] == [1]
