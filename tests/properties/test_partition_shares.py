"""Whatever the members have: shares are even, and no other even ones would leave less to rebuild."""

from __future__ import annotations

from itertools import permutations, product

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams.partition_shares import share_out

Kept = dict[str, dict[int, int]]

on_a_busy_machine_too = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def _groups(draw: st.DrawFn, partitions: int, members: int) -> tuple[int, Kept]:
    """How many partitions there are, and what each member has of them; of one that is gone, too."""
    count = draw(st.integers(1, partitions))
    states = st.dictionaries(st.integers(0, count), st.integers(1, 9))
    names = st.sampled_from("abcdefgh"[:members])
    return count, draw(st.dictionaries(names, states, min_size=1))


def _used(shares: dict[str, set[int]], kept: Kept) -> int:
    """How many partitions are where a state of them is."""
    return sum(len(share & kept[member].keys()) for member, share in shares.items())


@on_a_busy_machine_too
@given(_groups(partitions=40, members=8))
def test_each_partition_has_one_member_and_shares_differ_by_one_at_most(group: tuple[int, Kept]) -> None:
    count, kept = group
    shares = share_out(range(count), kept)
    assert sorted(partition for share in shares.values() for partition in share) == list(range(count))
    assert shares.keys() == kept.keys()
    assert max(map(len, shares.values())) - min(map(len, shares.values())) <= 1


@on_a_busy_machine_too
@given(_groups(partitions=6, members=3))
def test_no_other_shares_of_these_sizes_would_use_more_states(group: tuple[int, Kept]) -> None:
    count, kept = group
    shares = share_out(range(count), kept)
    sizes = {member: len(share) for member, share in shares.items()}
    best = 0
    for owners in product(kept, repeat=count):
        if all(owners.count(member) == size for member, size in sizes.items()):
            others = {member: {p for p in range(count) if owners[p] == member} for member in kept}
            best = max(best, _used(others, kept))
    assert _used(shares, kept) == best


@on_a_busy_machine_too
@given(_groups(partitions=12, members=4))
def test_the_same_question_has_the_same_answer_however_it_is_put(group: tuple[int, Kept]) -> None:
    count, kept = group
    shares = share_out(range(count), kept)
    for order in permutations(kept):
        assert share_out(set(range(count)), {member: kept[member] for member in order}) == shares


@on_a_busy_machine_too
@given(_groups(partitions=24, members=4))
def test_once_everybody_has_got_its_share_nothing_moves_any_more(group: tuple[int, Kept]) -> None:
    count, kept = group
    shares = share_out(range(count), kept)
    later = {member: kept[member] | dict.fromkeys(share, 10) for member, share in shares.items()}
    assert share_out(range(count), later) == shares
