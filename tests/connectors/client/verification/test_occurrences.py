"""Every occurrence of a job has one decision: each way to miss or to double one is found, and nothing else is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from fencepost.verification.events import Event, RunEvent
from fencepost.verification.tally import ALONE, LOST, OCCURRENCES
from fencepost.verification.verifier import Verifier
from tests.connectors.client.verification.told import (
    at,
    broken,
    certificate_of,
    created,
    ended,
    expired,
    job_event,
    judged,
    leased,
    made,
    range_skipped,
    run_event,
)


def in_order(*events: Event) -> list[Event]:
    return [*events]


DAILY = {"cron": "0 9 * * *", "zone": "Europe/Berlin"}

SOUND: dict[str, Sequence[Event]] = {
    "one after the other": [created(), made(60), made(120), made(180)],
    "the run is told before its job": [made(60, seconds=0), created(), made(120)],
    "a range was skipped": [created(), made(60), range_skipped(2, 400, 120, 360, 5), made(420, seconds=400)],
    "the range is told after the run": [
        created(),
        made(60),
        made(420, seconds=400),
        range_skipped(2, 400, 120, 360, 5),
    ],
    "a range whose end was the cursor": [
        created(),
        made(60),
        range_skipped(2, 400, 120, 180, 2),
        range_skipped(3, 400, 240, 360, 3),
        made(420, seconds=400),
    ],
    "an edit begins anew": [
        *in_order(created(), made(60), made(120)),
        job_event("job_updated", 2, 70, 3600, schedule={"everySeconds": 3600}),
        *in_order(made(3600, seconds=70), made(7200, seconds=3600)),
    ],
    "an edit keeps what is pending": [
        *in_order(created(), made(60), made(120)),
        job_event("job_updated", 2, 70, 120, overlap="skip"),
        made(180),
    ],
    "created and edited in one transaction": [
        *in_order(created(), made(60, seconds=0), job_event("job_updated", 2, 0, 30, schedule={"everySeconds": 30})),
        run_event(2, "run_cancelled", 0, made(60).run_id, reason="edited"),
        *in_order(
            made(30, seconds=0), replace(made(60, seconds=30), version=3, event_id="again"), made(90, seconds=60)
        ),
    ],
    "a pause that skips": [
        *in_order(created(), made(60), made(120)),
        *in_order(job_event("job_paused", 2, 70, 120), job_event("job_resumed", 3, 500, 480)),
        *in_order(range_skipped(4, 500, 180, 480, 6), made(540, seconds=500)),
    ],
    "beside the schedule": [created(), made(60), run_event(1, "run_scheduled", 61, "t", reason="triggered"), made(120)],
    "a one-off": [job_event("job_created", 1, 0, 60, schedule={"runAt": "2026-03-01T12:01:00Z"}), made(60, seconds=0)],
    "a daily job over the change of the clock": [
        job_event("job_created", 1, 0, 27 * 86_400 - 4 * 3600, schedule=DAILY),
        made(27 * 86_400 - 4 * 3600, seconds=0),  # 2026-03-28 09:00 in Berlin is 08:00 UTC, the next day 07:00
        made(28 * 86_400 - 5 * 3600, seconds=27 * 86_400 - 4 * 3600),
    ],
    "a definition that is older": [made(120), made(180)],
    "a schedule that cannot be read": [created(schedule={"cron": "0 9 * * *", "zone": "Mars/Olympus"}), made(60)],
}


@pytest.mark.parametrize("events", SOUND.values(), ids=SOUND)
def test_decisions_that_follow_each_other_break_no_rule(events: Sequence[Event]) -> None:
    assert [violation.detail for violation in judged(events).violations] == []


WRONG: dict[str, tuple[Sequence[Event], str]] = {
    "one is missing": (
        [created(), made(60), made(180)],
        "1 occurrences from 2026-03-01T12:02:00Z on have no decision: the next is of 2026-03-01T12:03:00Z",
    ),
    "a range has a hole before it": ([created(), made(60), range_skipped(2, 400, 180, 360, 4)], "1 occurrences from"),
    "a range has a hole after it": (
        [created(), made(60), range_skipped(2, 400, 120, 300, 4), made(420, seconds=400)],
        "1 occurrences from 2026-03-01T12:06:00Z",
    ),
    "a range counts too many": (
        [created(), made(60), range_skipped(2, 400, 120, 360, 6)],
        "told to be 6 occurrences, and has 5",
    ),
    "one is decided twice": ([created(), made(60), made(120), range_skipped(2, 130, 120, 180, 2)], "was decided again"),
    "an edit's first is decided twice": (
        [
            *in_order(created(), made(60), made(120), job_event("job_updated", 2, 70, 120)),
            *in_order(range_skipped(3, 80, 120, 120, 1), range_skipped(4, 90, 120, 120, 1)),
        ],
        "was decided again",
    ),
    "a run that is no occurrence": ([created(), made(60), made(90)], "is no occurrence of the schedule"),
    "the clock's change was not heeded": (
        [
            job_event("job_created", 1, 0, 27 * 86_400 - 4 * 3600, schedule=DAILY),
            made(27 * 86_400 - 4 * 3600, seconds=0),
            made(28 * 86_400 - 4 * 3600, seconds=27 * 86_400 - 4 * 3600),
        ],
        "1 occurrences from 2026-03-29T07:00:00Z",
    ),
}


@pytest.mark.parametrize(("events", "detail"), WRONG.values(), ids=WRONG)
def test_an_occurrence_that_is_missing_or_doubled_is_found(events: Sequence[Event], detail: str) -> None:
    [violation] = judged(events).violations
    assert violation.rule == OCCURRENCES
    assert detail in violation.detail


def test_what_comes_and_is_not_decided_in_time_is_found() -> None:
    events = in_order(created(), made(60), made(120))
    patient = {"lost_after": timedelta(minutes=15)}
    assert OCCURRENCES not in broken(events, until=120 + 900, **patient)
    assert OCCURRENCES in broken(events, until=120 + 901, **patient)
    paused = [*events, job_event("job_paused", 2, 70, 120)]
    deleted = [*events, job_event("job_deleted", 2, 70, None)]
    for ended_job in (paused, deleted):
        assert OCCURRENCES not in broken(ended_job, until=5_000, **patient)


def test_a_job_that_gets_no_run_is_lost() -> None:
    assert broken([created()], until=900) == set()
    assert broken([created()], until=901 + 60) >= {LOST}
    assert broken([created(), made(60, seconds=0)], until=900) == set()


# --- from the middle of a job's life ---


def begun(*events: Event, until: float, is_paused: bool = False) -> list[str]:
    """What is wrong of a job that was created at noon, when only what comes after 12:59:30 is looked at."""
    verifier = Verifier(lost_after=timedelta(minutes=5))
    verifier.begin_job(created(), at(3570), is_paused=is_paused)
    for event in events:
        verifier.take(event)
    verifier.finish()
    for suspect in verifier.settle(at(until)):
        if suspect.run_id is None:
            verifier.explain(suspect, None)
    return [violation.detail for violation in verifier.violations if violation.rule == OCCURRENCES]


def test_a_job_from_before_the_range_goes_on_where_its_schedule_says() -> None:
    assert begun(made(3660), made(3720), until=3720) == []
    assert begun(until=3600 + 300) == []
    assert begun(until=10_000, is_paused=True) == []


def test_a_job_from_before_the_range_of_which_nothing_comes_is_missed() -> None:
    [wrong] = begun(until=3600 + 301)
    assert "2026-03-01T13:00:00Z has come" in wrong


def test_a_job_from_before_the_range_may_leave_nothing_out_at_its_edge() -> None:
    [wrong] = begun(made(3720, seconds=3700), until=3720)
    assert "1 occurrences from 2026-03-01T13:01:00Z on" in wrong


# --- one lease a job ---


def two_leases(overlap: str, *between: RunEvent) -> set[str]:
    """The job's first run is leased, then its second; in between comes `between`, about the first."""
    first, second = made(60), made(120)
    events: list[Event] = [
        *in_order(created(overlap=overlap), first, second),
        leased(2, 61, 1, run_id=first.run_id, due_at=at(60)),
        *(replace(event, run_id=first.run_id) for event in between),
        leased(2, 130, 1, run_id=second.run_id, due_at=at(120)),
    ]
    return broken(events)


def test_only_a_job_that_allows_overlap_has_two_leased_runs() -> None:
    assert two_leases("allow") == set()
    for overlap in ("skip", "replace"):
        assert two_leases(overlap) == {ALONE}
        assert two_leases(overlap, ended(3, "run_completed", 100, 1)) == set()
        assert two_leases(overlap, expired(3, 101, 1)) == set()


def test_a_run_that_was_asked_to_end_is_leased_until_it_has_ended() -> None:
    asked = ended(3, "run_cancel_requested", 90, 1, reason="replaced")
    assert two_leases("replace", asked) == {ALONE}
    assert two_leases("replace", asked, ended(4, "run_cancelled", 95, 1, reason="replaced")) == set()


def test_the_certificate_counts_decided_occurrences_and_says_whose_are_not_known() -> None:
    skipped = certificate_of(judged(SOUND["a range was skipped"]))
    assert (skipped.counts.occurrences, skipped.counts.jobs) == (7, 1)
    assert {rule.rule: rule.facts for rule in skipped.rules}[OCCURRENCES] == 7
    for name in ("a definition that is older", "a schedule that cannot be read"):
        made_anyway = certificate_of(judged(SOUND[name]))
        assert {rule.rule: rule.facts for rule in made_anyway.rules}[OCCURRENCES] == 0
        assert [each.count for each in made_anyway.unchecked if each.what == "occurrences of jobs"] == [1]
