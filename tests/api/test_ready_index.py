"""The ready index: order, lanes, bounds, and who gets what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from uuid import UUID, uuid4

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from api.ready_index import HIGH, LOW, LOW_WATER, NORMAL, Queue, ReadyIndex, ReadyRun, Waiter

MAIL = ("acme", "mail")


def new_ids(count: int) -> list[UUID]:
    return [uuid4() for _ in range(count)]


def add(index: ReadyIndex, run_ids: list[UUID], *, queue: Queue = MAIL, lane: int = NORMAL, epoch: int = 1) -> int:
    return index.add(queue, [ReadyRun(run_id, epoch, lane) for run_id in run_ids])


def ids(runs: list[ReadyRun]) -> list[UUID]:
    return [run.run_id for run in runs]


class Drops:
    """What was dropped, by queue."""

    def __init__(self) -> None:
        self.counts: Counter[Queue] = Counter()

    def __call__(self, queue: Queue, count: int) -> None:
        self.counts[queue] += count


class Sleeper:
    """Somebody who waits."""

    def __init__(self, index: ReadyIndex, wanted: int, queues: Sequence[Queue] = (MAIL,)) -> None:
        self.woken = 0
        self.waiter = Waiter(queues, wanted, self._wake)
        index.wait(self.waiter)

    def _wake(self) -> None:
        self.woken += 1


def test_runs_of_a_lane_come_in_the_order_they_were_told() -> None:
    index, told = ReadyIndex(), new_ids(20)
    add(index, told[:7])
    add(index, told[7:])
    assert ids(index.pop(MAIL, 5)) + ids(index.pop(MAIL, 100)) == told
    assert len(index) == 0


def test_a_run_told_twice_is_popped_once_with_the_newest_epoch() -> None:
    index, [run_id] = ReadyIndex(), new_ids(1)
    assert add(index, [run_id], epoch=3) == 1
    assert add(index, [run_id], epoch=4) == 0
    assert add(index, [run_id], epoch=2) == 0
    assert index.pop(MAIL, 9) == [ReadyRun(run_id, 4, NORMAL)]


def test_a_popped_run_is_no_news_until_its_claim_is_settled() -> None:
    index, [run_id] = ReadyIndex(), new_ids(1)
    add(index, [run_id])
    popped = index.pop(MAIL, 1)
    assert add(index, [run_id]) == 0
    index.settle(popped)
    assert add(index, [run_id]) == 1


def test_queues_and_tenants_do_not_see_each_other() -> None:
    index = ReadyIndex()
    index.add(("acme", "mail"), [ReadyRun(uuid4(), 1, NORMAL)])
    assert index.pop(("acme", "sms"), 5) == []
    assert index.pop(("other", "mail"), 5) == []
    assert len(index.pop(("acme", "mail"), 5)) == 1


def test_ten_pops_of_full_lanes_are_seven_two_one_however_they_are_batched() -> None:
    for batch in (1, 3, 10):
        index = ReadyIndex()
        for lane in (HIGH, NORMAL, LOW):
            add(index, new_ids(100), lane=lane)
        popped = [run.lane for _ in range(30 // batch) for run in index.pop(MAIL, batch)]
        assert Counter(popped) == {HIGH: 21, NORMAL: 6, LOW: 3}


def test_a_waiter_gets_lanes_that_came_together_seventy_twenty_ten() -> None:
    index = ReadyIndex()
    sleeper = Sleeper(index, wanted=10)
    index.add(MAIL, [ReadyRun(run_id, 1, lane) for lane in (HIGH, NORMAL, LOW) for run_id in new_ids(10)])
    assert Counter(run.lane for run in sleeper.waiter.take()) == {HIGH: 7, NORMAL: 2, LOW: 1}


def test_an_empty_lane_passes_its_share_down() -> None:
    index = ReadyIndex()
    add(index, new_ids(100), lane=NORMAL)
    add(index, new_ids(100), lane=LOW)
    assert Counter(run.lane for run in index.pop(MAIL, 100)) == {NORMAL: 90, LOW: 10}


def test_what_only_higher_lanes_have_goes_to_the_lowest_of_them() -> None:
    index = ReadyIndex()
    add(index, new_ids(100), lane=HIGH)
    add(index, new_ids(100), lane=NORMAL)
    assert Counter(run.lane for run in index.pop(MAIL, 100)) == {HIGH: 70, NORMAL: 30}


def look(index: ReadyIndex, lane: int, run_ids: list[UUID], *, is_more: bool) -> None:
    """What a look into the ledger brings of a lane."""
    index.add(MAIL, [ReadyRun(run_id, 1, lane) for run_id in run_ids], more={lane: is_more})


def test_a_lane_with_more_in_the_ledger_passes_nothing_down_before_it_was_looked_for() -> None:
    index = ReadyIndex()
    add(index, new_ids(100), lane=LOW)
    look(index, HIGH, new_ids(8), is_more=True)
    assert Counter(run.lane for run in index.pop(MAIL, 100)) == {HIGH: 8, LOW: 3}
    assert index.pop(MAIL, 100) == []
    sleeper = Sleeper(index, wanted=20)
    assert (sleeper.woken, index.low(MAIL)) == (0, [HIGH])
    look(index, HIGH, new_ids(8), is_more=False)
    assert Counter(run.lane for run in sleeper.waiter.take()) == {HIGH: 8, LOW: 12}


def test_a_lane_of_which_all_that_is_left_is_being_leased_passes_its_share_down() -> None:
    index = ReadyIndex()
    add(index, new_ids(20), lane=LOW)
    claimed = new_ids(8)
    look(index, HIGH, claimed, is_more=True)
    assert Counter(run.lane for run in index.pop(MAIL, 100)) == {HIGH: 8, LOW: 3}
    look(index, HIGH, claimed, is_more=True)
    assert Counter(run.lane for run in index.pop(MAIL, 100)) == {LOW: 17}


def test_a_lane_is_to_be_refilled_once_there_is_little_of_it_and_more_in_the_ledger() -> None:
    asked: list[Queue] = []
    index = ReadyIndex(on_low=asked.append)
    look(index, HIGH, new_ids(LOW_WATER + 1), is_more=True)
    assert asked == []
    index.pop(MAIL, 1)
    assert (asked, index.low(MAIL)) == ([], [])
    index.pop(MAIL, 1)
    assert (asked, index.low(MAIL)) == ([MAIL], [HIGH])


def test_what_is_leased_while_a_look_is_under_way_is_no_news_of_it() -> None:
    index, [leased, due] = ReadyIndex(), new_ids(2)
    add(index, [leased])
    popped = index.pop(MAIL, 1)
    with index.look():
        index.settle(popped)
        look(index, NORMAL, [leased, due], is_more=False)
    assert ids(index.pop(MAIL, 9)) == [due]
    add(index, [leased])
    assert ids(index.pop(MAIL, 9)) == [leased]


def test_a_lane_that_was_too_full_to_take_all_has_more() -> None:
    index = ReadyIndex(most_a_lane=3)
    add(index, new_ids(4), lane=HIGH)
    add(index, new_ids(3), lane=LOW)
    assert Counter(run.lane for run in index.pop(MAIL, 6)) == {HIGH: 3, LOW: 1}
    assert index.low(MAIL) == [HIGH]


def test_what_was_put_back_comes_first_again() -> None:
    index, told = ReadyIndex(), new_ids(6)
    add(index, told)
    popped = index.pop(MAIL, 3)
    index.put_back(MAIL, popped)
    assert ids(index.pop(MAIL, 6)) == told


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    drops = Drops()
    index = ReadyIndex(most_a_lane=5, most=8, on_drop=drops)
    assert add(index, new_ids(7)) == 5
    assert add(index, new_ids(7), lane=HIGH) == 3
    assert (len(index), drops.counts) == (8, {MAIL: 6})


def test_a_full_index_forgets_the_queue_that_nobody_has_asked_about_for_longest() -> None:
    """Those of a backlog without workers would keep everybody else's runs out for as long as the process lives."""
    drops, sms, push = Drops(), ("acme", "sms"), ("globex", "push")
    index = ReadyIndex(most=6, on_drop=drops)
    add(index, new_ids(3), queue=sms)
    add(index, new_ids(3), queue=push)
    index.pop(sms, 1)
    assert add(index, new_ids(2)) == 2
    assert drops.counts == {push: 3}
    assert [len(index.pop(queue, 9)) for queue in (sms, push, MAIL)] == [2, 0, 2]


def test_who_waits_is_served_by_a_full_index_without_anything_being_forgotten() -> None:
    index, sms = ReadyIndex(most=3), ("acme", "sms")
    add(index, new_ids(3), queue=sms)
    sleeper = Sleeper(index, wanted=2)
    assert add(index, new_ids(2)) == 2
    assert len(sleeper.waiter.take()) == 2
    assert len(index.pop(sms, 9)) == 3


def test_the_longest_waiting_is_woken_first() -> None:
    index, [run_id] = ReadyIndex(), new_ids(1)
    first, second = Sleeper(index, 10), Sleeper(index, 10)
    add(index, [run_id])
    assert (first.woken, second.woken) == (1, 0)
    assert ids(first.waiter.take()) == [run_id]


def test_runs_are_shared_among_those_who_wait() -> None:
    index, told = ReadyIndex(), new_ids(10)
    sleepers = [Sleeper(index, wanted) for wanted in (100, 100, 2)]
    add(index, told)
    got = [ids(sleeper.waiter.take()) for sleeper in sleepers]
    assert [len(each) for each in got] == [4, 3, 2]
    assert [run_id for each in got for run_id in each] + ids(index.pop(MAIL, 9)) == told


def test_a_newcomer_cannot_overtake_those_who_wait() -> None:
    index = ReadyIndex()
    sleeper = Sleeper(index, 1)
    add(index, new_ids(1))
    assert index.pop(MAIL, 1) == []
    assert len(sleeper.waiter.take()) == 1


def test_what_was_handed_to_one_who_leaves_goes_to_the_next() -> None:
    index, [run_id] = ReadyIndex(), new_ids(1)
    first, second = Sleeper(index, 1), Sleeper(index, 1)
    add(index, [run_id])
    index.leave(first.waiter)
    assert ids(second.waiter.take()) == [run_id]
    assert index.wanted(MAIL) == 0


def test_who_waits_on_several_queues_gets_what_comes_first_and_waits_on_none_of_them_any_more() -> None:
    index, sms, told = ReadyIndex(), ("acme", "sms"), new_ids(2)
    sleeper, after = Sleeper(index, 9, [MAIL, sms]), Sleeper(index, 9, [sms])
    index.add(sms, [ReadyRun(told[0], 1, NORMAL)])
    assert (sleeper.woken, sleeper.waiter.queue, ids(sleeper.waiter.take())) == (1, sms, told[:1])
    assert add(index, told[1:]) == 1
    assert (sleeper.woken, ids(index.pop(MAIL, 9))) == (1, told[1:])
    assert (index.wanted(MAIL), index.wanted(sms), after.woken) == (0, 9, 0)


def test_wanted_adds_up_those_who_wait() -> None:
    index = ReadyIndex()
    first, _ = Sleeper(index, 3), Sleeper(index, 4)
    assert index.wanted(MAIL) == 7
    index.leave(first.waiter)
    assert index.wanted(MAIL) == 4


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), max_size=20), st.integers(1, 40))
def test_every_run_comes_out_exactly_once_and_in_its_lane_s_order(told: list[tuple[int, int]], batch: int) -> None:
    index = ReadyIndex()
    by_lane: dict[int, list[UUID]] = {HIGH: [], NORMAL: [], LOW: []}
    for lane, count in told:
        run_ids = new_ids(count)
        by_lane[lane] += run_ids
        add(index, run_ids, lane=lane)
    popped: list[ReadyRun] = []
    while runs := index.pop(MAIL, batch):
        popped += runs
    for lane, run_ids in by_lane.items():
        assert [run.run_id for run in popped if run.lane == lane] == run_ids


class IndexLife(RuleBasedStateMachine):
    """Whatever happens, a run is in one place: the index, a waiter's hands, or with who popped it."""

    def __init__(self) -> None:
        super().__init__()
        self.index = ReadyIndex(most_a_lane=8, most=16)
        self.sleepers: list[Sleeper] = []
        self.claimed: list[ReadyRun] = []
        self.pool = [UUID(int=number) for number in range(40)]

    @rule(lane=st.integers(0, 2), picks=st.lists(st.integers(0, 39), max_size=10), epoch=st.integers(1, 3))
    def tell(self, lane: int, picks: list[int], epoch: int) -> None:
        # A run has one lane for life, as in the ledger.
        add(self.index, [self.pool[pick] for pick in picks if pick % 3 == lane], lane=lane, epoch=epoch)

    @rule(picks=st.lists(st.integers(0, 39), max_size=10), more=st.tuples(*[st.booleans()] * 3))
    def look(self, picks: list[int], more: tuple[bool, ...]) -> None:
        due = [ReadyRun(self.pool[pick], 1, pick % 3) for pick in picks]
        self.index.add(MAIL, due, more=dict(enumerate(more)))

    @rule(count=st.integers(1, 10))
    def pop(self, count: int) -> None:
        popped = self.index.pop(MAIL, count)
        assert len(popped) <= count
        self.claimed += popped

    @rule()
    def settle(self) -> None:
        self.index.settle(self.claimed)
        self.claimed = []

    @rule()
    def put_back(self) -> None:
        self.index.put_back(MAIL, self.claimed)
        self.claimed = []

    @rule(wanted=st.integers(1, 5))
    def wait(self, wanted: int) -> None:
        if not (popped := self.index.pop(MAIL, wanted)):
            self.sleepers.append(Sleeper(self.index, wanted))
        self.claimed += popped

    @rule(take=st.booleans())
    def leave(self, take: bool) -> None:
        if self.sleepers:
            sleeper = self.sleepers.pop(0)
            if take:
                self.claimed += sleeper.waiter.take()
            self.index.leave(sleeper.waiter)

    @invariant()
    def nobody_holds_what_another_holds(self) -> None:
        held = [*self.claimed, *(run for sleeper in self.sleepers for run in sleeper.waiter.runs)]
        assert len({run.run_id for run in held}) == len(held)

    @invariant()
    def nothing_is_kept_while_somebody_waits_but_for_a_look(self) -> None:
        if self.index.wanted(MAIL) and not self.index.low(MAIL):
            assert len(self.index) == 0

    @invariant()
    def who_was_woken_has_runs(self) -> None:
        for sleeper in self.sleepers:
            assert sleeper.woken == bool(sleeper.waiter.runs)
            assert len(sleeper.waiter.runs) <= sleeper.waiter.wanted


TestIndexLife = IndexLife.TestCase
TestIndexLife.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
