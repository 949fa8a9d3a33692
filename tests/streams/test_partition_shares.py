"""Who gets which partition: restarts, joins and leaves, as the group sees them."""

from __future__ import annotations

import pytest

from streams.partition_shares import NOTHING_YET, share_out

LOW, HIGH = range(8), range(8, 16)
ALL = range(16)


def of(partitions: range, epoch: int) -> dict[int, int]:
    return dict.fromkeys(partitions, epoch)


def test_whoever_came_back_first_gives_up_what_the_other_has() -> None:
    """Alone it was given all, and had opened half of it from its own state when the other one came."""
    assert share_out(ALL, {"a": of(LOW, 2) | of(HIGH, NOTHING_YET), "b": of(HIGH, 1)}) == {
        "a": set(LOW),
        "b": set(HIGH),
    }
    assert share_out(ALL, {"a": of(HIGH, 2) | of(LOW, NOTHING_YET), "b": of(LOW, 1)}) == {"a": set(HIGH), "b": set(LOW)}


def test_whoever_has_opened_all_meanwhile_gives_up_what_the_other_has_a_state_of() -> None:
    assert share_out(ALL, {"a": of(ALL, 2), "b": of(HIGH, 1)}) == {"a": set(LOW), "b": set(HIGH)}
    assert share_out(ALL, {"a": of(ALL, 2), "b": of(LOW, 1)}) == {"a": set(HIGH), "b": set(LOW)}


def test_among_old_states_those_are_used_that_have_missed_least() -> None:
    assert share_out(ALL, {"a": of(ALL, 9), "b": of(LOW, 8) | of(HIGH, 3)}) == {"a": set(HIGH), "b": set(LOW)}


def test_one_that_joins_takes_no_more_than_an_even_share_and_the_others_keep_the_rest() -> None:
    shares = share_out(ALL, {"a": of(LOW, 2), "b": of(HIGH, 1), "c": {}})
    assert shares["a"] <= set(LOW)
    assert shares["b"] <= set(HIGH)
    assert [len(shares[member]) for member in "abc"] == [6, 5, 5]


def test_of_one_that_leaves_the_others_get_what_they_have_an_old_state_of() -> None:
    """And keep what they own, unless that makes room for a state that would be of no use else."""
    a, b = of(range(6), 5) | of(range(10, 13), 2), of(range(6, 10), 5) | of(range(13, 16), 2)
    assert share_out(ALL, {"a": a, "b": b}) == {
        "a": {*range(6), 10, 11},
        "b": {*range(6, 10), 12, 13, 14, 15},
    }


def test_an_owner_moves_when_that_spares_a_rebuild() -> None:
    """Of 2 only a has anything, and a has the newest state of 0, too: b has some of that."""
    assert share_out(range(2), {"a": {0: 7, 1: 1}, "b": {0: 4}}) == {"a": {1}, "b": {0}}


def test_a_partition_that_is_being_rebuilt_stays_unless_somebody_has_a_state_of_it() -> None:
    shares = share_out(range(4), {"a": of(range(2), NOTHING_YET), "b": of(range(2, 4), NOTHING_YET)})
    assert shares == {"a": {0, 1}, "b": {2, 3}}
    shares = share_out(range(4), {"a": of(range(2), NOTHING_YET), "b": {0: 1, 2: NOTHING_YET, 3: NOTHING_YET}})
    assert 0 in shares["b"]


def test_more_members_than_partitions_leave_some_without() -> None:
    shares = share_out(range(2), {"a": {0: 1}, "b": {}, "c": {1: 4}})
    assert shares == {"a": {0}, "b": set(), "c": {1}}


def test_nobody_has_anything_at_first() -> None:
    assert share_out(range(5), {"b": {}, "a": {}}) == {"a": {0, 1, 2}, "b": {3, 4}}


@pytest.mark.parametrize("partitions", [256, 4096])
def test_a_large_group_is_shared_out_too(partitions: int) -> None:
    """Where one has everything and the others a part each."""
    kept = {"all": of(range(partitions), 3)} | {f"part-{n:02d}": of(range(n, partitions, 32), 2) for n in range(31)}
    shares = share_out(range(partitions), kept)
    assert {len(share) for share in shares.values()} == {partitions // 32}
    assert all(share <= kept[member].keys() for member, share in shares.items())
