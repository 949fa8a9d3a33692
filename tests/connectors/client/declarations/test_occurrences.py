"""What a plan says of occurrences is all that differs: applied to those before, it gives those after."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from fencepost.declarations.occurrences import Moved, OccurrenceChanges, changes

DAY = datetime(2026, 3, 28, tzinfo=UTC)
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Pacific/Apia", "Asia/Kathmandu"])
INSTANTS = st.lists(st.integers(0, 6 * 24).map(lambda hours: DAY + timedelta(hours=hours / 2)), unique=True).map(sorted)


def applied(before: list[datetime], changed: OccurrenceChanges) -> list[datetime]:
    """The occurrences before, with the changes made to them one by one."""
    left = list(before)
    for gone in [*changed.removed, *(each.before for each in changed.moved)]:
        left.remove(gone)
    return sorted([*left, *changed.added, *(each.after for each in changed.moved)])


@given(before=INSTANTS, after=INSTANTS, zone=ZONES)
def test_the_changes_turn_what_was_into_what_will_be(before: list[datetime], after: list[datetime], zone: str) -> None:
    changed = changes(before, after, zone)
    assert applied(before, changed) == after
    assert changed.unchanged == sorted(set(before) & set(after))


@given(before=INSTANTS, after=INSTANTS, zone=ZONES)
def test_nothing_is_told_twice_and_a_day_has_no_removal_beside_an_addition(
    before: list[datetime], after: list[datetime], zone: str
) -> None:
    changed = changes(before, after, zone)
    left = [*changed.removed, *(each.before for each in changed.moved), *changed.unchanged]
    come = [*changed.added, *(each.after for each in changed.moved), *changed.unchanged]
    assert (sorted(left), sorted(come)) == (before, after)
    swapped = changes(after, before, zone)
    assert [Moved(each.after, each.before) for each in swapped.moved] == changed.moved
    assert (swapped.added, swapped.removed) == (changed.removed, changed.added)


def test_what_moves_is_paired_by_the_day_of_the_zone() -> None:
    """23:30 UTC is the next day in Berlin already."""
    late, early, next_day = DAY + timedelta(hours=23.5), DAY + timedelta(hours=1), DAY + timedelta(hours=32)
    assert changes([late], [early, next_day], "UTC") == OccurrenceChanges([], [next_day], [], [Moved(late, early)])
    assert changes([late], [early, next_day], "Europe/Berlin") == ([], [early], [], [(late, next_day)])
