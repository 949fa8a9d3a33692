"""A plan: which jobs are added, changed, removed or kept, when they then occur, and what its hash stands for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from fencepost.commandline.plan_text import plan_lines
from fencepost.declarations.definitions import FieldChange
from fencepost.declarations.plan import Plan
from fencepost.declarations.plan_hash import moved_since, plan_hash
from fencepost.errors import InvalidInput
from tests.connectors.client.declarations.declared import START, TENANT, job, job_planned, jobs, planned, served

AT_NINE = job('{cron: "0 9 * * *", zone: Europe/Berlin}')
AT_TEN = job('{cron: "0 10 * * *", zone: Europe/Berlin}')
HOURLY = job('{cron: "@hourly"}')


def berlin(day: int, hour: int) -> datetime:
    return datetime(2026, 3, day, hour - 1, tzinfo=UTC)


def test_each_job_is_added_changed_removed_kept_or_none_of_it() -> None:
    then = jobs(same=AT_NINE, other=AT_NINE, gone=HOURLY)
    now = jobs(new=HOURLY, other=AT_TEN, same=AT_NINE)
    found = [served(then, name) for name in then.jobs]
    actions = {each.name: each.action for each in planned(now, *found).jobs}
    assert actions == {"new": "add", "other": "change", "same": "none", "gone": "keep"}
    pruned = planned(now, *found, prune=True)
    assert job_planned(pruned, "gone").action == "remove"
    assert [each.name for each in pruned.actions()] == ["new", "other", "gone"]


def test_a_change_is_told_field_by_field() -> None:
    then = jobs(mails=job('{cron: "0 9 * * *"}', payload="{to: ops, cc: {a: 1}}"))
    now = jobs(mails=job('{cron: "0 9 * * *", jitterSeconds: 5}', payload="{to: ops, cc: {a: 2}}", overlap="skip"))
    assert job_planned(planned(now, served(then, "mails")), "mails").fields == [
        FieldChange("schedule.jitterSeconds", None, 5.0),
        FieldChange("payload.cc.a", 1, 2),
        FieldChange("overlap", "allow", "skip"),
    ]


def test_occurrences_of_a_changed_schedule_move_day_by_day() -> None:
    change = job_planned(planned(jobs(mails=AT_TEN), served(jobs(mails=AT_NINE), "mails")), "mails")
    seen = change.occurrences
    assert seen.moved == [(berlin(day, 9), berlin(day, 10)) for day in range(3, 10)]
    assert (seen.added, seen.removed, seen.unchanged) == ([], [], 0)
    assert (change.pending_before, change.pending_after) == (berlin(3, 9), berlin(3, 10))


def test_what_is_pending_stays_when_the_schedule_does() -> None:
    """Also when it lies beyond the schedule's next fire, as after an edit that takes effect later."""
    then = served(jobs(mails=AT_NINE), "mails", next_run_at=berlin(6, 9))
    change = job_planned(
        planned(jobs(mails=job('{cron: "0 9 * * *", zone: Europe/Berlin}', maxAttempts=2)), then), "mails"
    )
    assert (change.action, change.pending_after) == ("change", berlin(6, 9))
    assert (change.occurrences.unchanged, change.occurrences.moved) == (4, [])


def test_a_paused_job_has_no_occurrences_before_or_after() -> None:
    found = served(jobs(mails=AT_NINE), "mails", state="paused", held_runs=1)
    seen = job_planned(planned(jobs(mails=AT_TEN), found), "mails")
    assert (seen.occurrences.moved, seen.occurrences.added, seen.occurrences.unchanged) == ([], [], 0)
    assert seen.pending_after == berlin(3, 10)


def test_a_single_run_whose_time_has_passed_is_made_at_once() -> None:
    plan = planned(jobs(once=job("{runAt: 2026-03-01T00:00:00Z}")))
    assert job_planned(plan, "once").occurrences.added == [datetime(2026, 3, 1, tzinfo=UTC)]
    assert plan.load_after.peak_at == START


def test_a_single_run_that_is_over_is_left_alone() -> None:
    once = jobs(once=job("{runAt: 2026-03-01T00:00:00Z}"))
    plan = planned(once, served(once, "once", next_run_at=None))
    assert (plan.actions(), plan.load_before.runs, plan.load_after.runs) == ([], 0, 0)


@pytest.mark.parametrize(
    "schedule", ['{cron: "0 9 * * *", endAt: "2026-03-01T00:00:00Z"}', "{runAt: 2026-03-01T00:00:00Z}"]
)
def test_a_job_that_would_never_fire_again_is_refused(schedule: str) -> None:
    with pytest.raises(InvalidInput, match="never fires from now on"):
        planned(jobs(mails=job(schedule)), served(jobs(mails=AT_NINE), "mails"))


def test_a_job_that_is_declared_again_gets_an_id_that_was_never_used() -> None:
    of = jobs(mails=AT_NINE)
    first = planned(of).jobs[0]
    deleted = [served(of, "mails", state="deleted", generation=generation) for generation in (1, 2)]
    again = planned(of, *deleted).jobs[0]
    assert (first.key, again.key) == ("declared/billing/mails", "declared/billing/mails#3")
    assert again.action == "add"
    assert again.job_id not in {first.job_id, *(each.job_id for each in deleted)}


def test_the_load_counts_runs_where_they_become_due() -> None:
    hourly, both = jobs(a=HOURLY), jobs(a=HOURLY, b=job('{cron: "0 */2 * * *"}'), c=job("{everySeconds: 60}"))
    plan = planned(both, served(hourly, "a"), horizon=timedelta(days=1))
    assert (plan.load_before.runs, plan.load_before.peak) == (24, 1)
    assert (plan.load_after.runs, plan.load_after.peak) == (24 + 12 + 1440, 3)
    assert plan.load_after.peak_at == datetime(2026, 3, 2, 12, tzinfo=UTC)
    assert plan.load_after.by_hour[12:14] == [62, 61]


def test_jitter_moves_the_load_and_no_occurrence() -> None:
    sharp, spread = jobs(a=job("{everySeconds: 600}")), jobs(a=job("{everySeconds: 600, jitterSeconds: 599}"))
    plan = planned(spread, served(sharp, "a"), horizon=timedelta(days=4))
    assert job_planned(plan, "a").occurrences.unchanged == plan.load_after.runs == 4 * 144
    assert plan.load_before.peak_at == START + timedelta(minutes=10)
    assert plan.load_after.peak_at != plan.load_before.peak_at


def test_a_plan_survives_its_file() -> None:
    plan = planned(jobs(new=HOURLY, mails=AT_TEN), served(jobs(mails=AT_NINE), "mails"), prune=True)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan


# -- the hash


def test_the_hash_tells_whether_the_file_or_the_server_has_moved() -> None:
    of, other = jobs(mails=AT_TEN), jobs(mails=HOURLY)
    found = served(jobs(mails=AT_NINE), "mails")
    plan = planned(of, found)

    def moved(declared: object = of, base: object = plan.base, prune: bool = False, age_h: float = 0) -> list[str]:
        start = START + timedelta(hours=age_h)
        return moved_since(plan.hash, TENANT, declared, base, prune=prune, start=start)  # type: ignore[arg-type]

    assert moved() == moved(age_h=23) == []
    assert "the file has changed" in moved(declared=other)[0]
    assert "--prune" in moved(prune=True)[0]
    assert "server's jobs" in moved(base=planned(of, served(of, "mails", version=2)).base)[0]
    assert "server's jobs" in moved(base=planned(of, served(of, "mails", state="paused")).base)[0]
    assert len(moved(declared=other, base=[])) == 2
    assert "older than 24 hours" in moved(age_h=26)[0]
    assert "64 hexadecimal digits" in moved_since("12", TENANT, of, [], prune=False, start=START)[0]


def test_the_hash_is_of_the_meaning_not_of_the_writing() -> None:
    def hashed(text: str, start: datetime = START) -> str:
        return plan_hash(TENANT, jobs(mails=text), [], prune=False, start=start)

    assert hashed(AT_NINE) == hashed(job('{zone: Europe/Berlin, cron: "0 9 * * *", excludeDates: []}', overlap="allow"))
    assert hashed(AT_NINE) == hashed(AT_NINE, START + timedelta(minutes=20))
    assert hashed(AT_NINE) != hashed(AT_TEN)


# -- what people read


def test_the_text_says_what_becomes_of_the_runs() -> None:
    found = [
        served(jobs(mails=AT_NINE), "mails", pending_runs=1, leased_runs=2),
        served(jobs(gone=HOURLY), "gone", pending_runs=2, leased_runs=1),
    ]
    text = "\n".join(plan_lines(planned(jobs(mails=AT_TEN, new=HOURLY), *found, prune=True)))
    for said in (
        "1 to add, 1 to change, 1 to remove, 0 unchanged",
        'schedule.cron: "0 9 * * *" → "0 10 * * *"',
        "7 moved: 2026-03-03T08:00:00Z → 2026-03-03T09:00:00Z, ",
        "(paired by day in Europe/Berlin, in order)",
        "its pending run, of 2026-03-03T08:00:00Z, is replaced by one of 2026-03-03T09:00:00Z",
        "2 runs that a worker has leased go on",
        "2 runs that no worker has leased are cancelled",
        "1 run that a worker has leased goes on",
        "168 removed: 2026-03-02T11:00:00Z, ",
        "Load of the set: 175 runs before, 175 after",
    ):
        assert said in text


def test_the_text_names_every_occurrence_when_asked() -> None:
    plan = planned(jobs(new=HOURLY), horizon=timedelta(hours=5))
    short, whole = ("\n".join(plan_lines(plan, most)) for most in (3, None))
    assert "5 added: 2026-03-02T11:00:00Z, 2026-03-02T12:00:00Z, 2026-03-02T13:00:00Z, …\n" in short
    assert "T13:00:00Z, 2026-03-02T14:00:00Z, 2026-03-02T15:00:00Z\n" in whole


def test_the_text_of_what_stays_paused_and_of_what_is_kept() -> None:
    found = [
        served(jobs(mails=AT_NINE), "mails", state="paused", held_runs=1),
        served(jobs(left=HOURLY), "left"),
    ]
    text = "\n".join(plan_lines(planned(jobs(mails=AT_TEN), *found)))
    assert "paused: nothing fires until it is resumed" in text
    assert "its held run, of 2026-03-03T08:00:00Z, is replaced by one of 2026-03-03T09:00:00Z" in text
    assert "1 kept that the file has not (--prune removes them)" in text
    assert "= left" in text
