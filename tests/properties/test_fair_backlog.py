"""Tenants of a partition take turns: whatever they send, and wherever an owner dies, each command is applied once.

Those of a tenant are applied in order, and nobody waits for another's flood.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams import fair_backlog
from streams.fair_backlog import RECORD_BYTES, Batch, FairBacklog
from streams.rejections import RawCommand

A_FEW = 8 * (RECORD_BYTES + 1)


@pytest.fixture(autouse=True, scope="module")
def short_refills() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fair_backlog, "REFILL_RECORDS", 7)
        yield


class Ledger:
    """What a partition's row and `commands_ahead` say, and what took effect."""

    def __init__(self) -> None:
        self.position = 0
        self.ahead: dict[str, int] = {}
        self.applied: list[int] = []

    def apply(self, batch: Batch) -> None:
        self.applied += [record.offset for record in batch.records]
        assert batch.position >= self.position
        self.position = batch.position
        if batch.ahead is not None:
            self.ahead |= batch.ahead
            self.ahead = {tenant: at for tenant, at in self.ahead.items() if at > self.position}


class Owner:
    """Reads a topic into a backlog, as the inbox does. topic: offset and tenant of each record."""

    def __init__(self, ledger: Ledger, topic: Sequence[tuple[int, str]], capacity_bytes: int = A_FEW) -> None:
        self._topic, self._ledger = topic, ledger
        self.backlog = FairBacklog(ledger.position, ledger.ahead, capacity_bytes)
        self.reads = 0

    def read(self) -> bool:
        """The next record that there is; False at the end of the topic."""
        found = next((each for each in self._topic if each[0] >= self.backlog.read_at), None)
        if found is not None:
            self.reads += 1
            self.backlog.add(found[1], RawCommand(0, found[0], None, b"x"))
            self.backlog.is_refill_over()
        return found is not None

    def apply(self, limit: int) -> None:
        if not self.backlog.is_empty:
            self._ledger.apply(self.backlog.take(limit, 1 << 20))
        self.backlog.begin_refill()

    def finish(self) -> None:
        while sum(self.read() for _ in range(20)) or not self.backlog.is_over or not self.backlog.is_empty:
            self.apply(3)
            if not self.backlog.is_refill_over():
                self.backlog.looked()


def tenants_in_order(topic: Sequence[tuple[int, str]], offsets: Sequence[int]) -> dict[str, list[int]]:
    tenant_of, by_tenant = dict(topic), defaultdict[str, list[int]](list)
    for offset in offsets:
        by_tenant[tenant_of[offset]].append(offset)
    return by_tenant


@st.composite
def topics(draw: st.DrawFn) -> list[tuple[int, str]]:
    """With gaps, as transactions leave them, and floods of a tenant's."""
    floods = draw(st.lists(st.tuples(st.sampled_from("ABCD"), st.integers(1, 30)), max_size=8))
    tenants = [tenant for tenant, count in floods for _ in range(count)]
    gaps = draw(st.lists(st.sampled_from([1, 1, 1, 1, 2, 5]), min_size=len(tenants), max_size=len(tenants)))
    return [(sum(gaps[:at]), tenant) for at, tenant in enumerate(tenants)]


@given(topics(), st.lists(st.sampled_from(["read", "read", "read", "apply", "look", "die"]), max_size=120))
@settings(max_examples=500, deadline=None)
def test_each_command_is_applied_once_and_a_tenant_s_in_order_wherever_owners_die(
    topic: list[tuple[int, str]], acts: list[str]
) -> None:
    ledger = Ledger()
    owner = Owner(ledger, topic)
    for act in acts:
        if act == "read":
            owner.read()
        elif act == "apply":
            owner.apply(4)
        elif act == "look":
            owner.backlog.looked()
        else:
            owner = Owner(ledger, topic)
    owner.finish()
    assert tenants_in_order(topic, ledger.applied) == tenants_in_order(topic, [offset for offset, _ in topic])
    assert ledger.ahead == {}
    assert ledger.position == (topic[-1][0] + 1 if topic else 0)


@given(topics(), st.lists(st.booleans(), max_size=150))
@settings(max_examples=200, deadline=None)
def test_what_is_held_stays_within_its_size(topic: list[tuple[int, str]], reads: list[bool]) -> None:
    ledger = Ledger()
    owner = Owner(ledger, topic)
    for read in reads:
        if read:
            owner.read()
        else:
            owner.apply(2)
        assert owner.backlog._weight <= A_FEW
        assert owner.backlog._weight == sum(len(queue) * (RECORD_BYTES + 1) for queue in owner.backlog._queues.values())


def test_a_command_behind_a_flood_comes_with_the_next_turn_once_it_is_read() -> None:
    topic = [*((offset, "A") for offset in range(1_000)), (1_000, "B"), (1_001, "B")]
    ledger = Ledger()
    owner = Owner(ledger, topic)
    while owner.read():
        pass
    owner.apply(4)
    assert {1_000, 1_001} <= set(ledger.applied)
    assert ledger.ahead == {"B": 1_002}
    assert ledger.position < 10


def test_two_floods_are_applied_side_by_side_and_each_is_read_few_times() -> None:
    topic = [*((offset, "A") for offset in range(500)), *((500 + offset, "B") for offset in range(500))]
    ledger = Ledger()
    owner = Owner(ledger, topic, 100 * (RECORD_BYTES + 1))
    while owner.read():
        pass
    owner.finish()
    half = ledger.applied[:500]
    assert 150 < sum(offset < 500 for offset in half) < 350
    assert owner.reads < 6 * len(topic)


def test_a_tenant_alone_leaves_nobody_ahead() -> None:
    ledger = Ledger()
    owner = Owner(ledger, [(offset, "A") for offset in range(50)])
    for _ in range(20):
        owner.read()
    assert not owner.backlog.is_shared
    batch = owner.backlog.take(5, 1 << 20)
    assert (batch.position, batch.ahead) == (5, None)


def test_of_more_tenants_than_can_be_known_none_is_let_in() -> None:
    backlog = FairBacklog(0, {f"t{number}": 10**9 for number in range(10_000)}, A_FEW)
    assert backlog.has_place("t5")
    assert not backlog.has_place("another")
