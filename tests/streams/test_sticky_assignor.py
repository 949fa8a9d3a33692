"""The assignor within Faust: what members tell, how a group is shared out, beside members that run Faust's own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from faust.assignor import PartitionAssignor

from streams import kept_states
from streams.faust_app import create_owners_app
from streams.ownership import Ownership
from streams.sticky_assignor import StickyAssignor

TOPIC = "commands"


class Cluster:
    """As far as assignors ask."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self._partitions)) if topic == TOPIC else None


class Member:
    """A member of a group that nobody but the test holds together."""

    def __init__(self, folder: Path, kind: type[PartitionAssignor] = StickyAssignor) -> None:
        self.folder = folder
        app = create_owners_app("127.0.0.1:1", "owners", TOPIC, Ownership("a", 1.0), folder)
        self.assignor = kind(app, replicas=1)
        self.share: set[int] = set()

    def has(self, partitions: Iterable[int], epoch: int) -> Member:
        for partition in partitions:
            folder = kept_states.folder_of(self.folder, partition)
            folder.mkdir(parents=True, exist_ok=True)
            kept_states.note(folder, epoch)
        return self

    def told(self) -> ConsumerProtocolMemberMetadata:
        """What the member joins with, as others read it."""
        return ConsumerProtocolMemberMetadata.decode(self.assignor.metadata({TOPIC}).encode())

    def take(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        assignment = ConsumerProtocolMemberAssignment.decode(assignment.encode())
        self.assignor.on_assignment(assignment)
        self.share = {partition for topic, partitions in assignment.assignment for partition in partitions}


def rebalance(partitions: int, leader: Member, *others: Member) -> None:
    members = {f"member-{number}": member for number, member in enumerate((leader, *others))}
    answers = leader.assignor.assign(
        Cluster(partitions), {member_id: member.told() for member_id, member in members.items()}
    )
    for member_id, member in members.items():
        member.take(answers[member_id])
    assert sorted(partition for member in members.values() for partition in member.share) == list(range(partitions))


@pytest.mark.parametrize("second_leads", [False, True])
def test_members_get_what_they_have_the_state_of(tmp_path: Path, second_leads: bool) -> None:
    a, b = Member(tmp_path / "a").has(range(0, 16, 2), 3), Member(tmp_path / "b").has(range(1, 16, 2), 4)
    rebalance(16, *((b, a) if second_leads else (a, b)))
    assert (a.share, b.share) == (set(range(0, 16, 2)), set(range(1, 16, 2)))


def test_of_two_that_restart_the_first_is_alone_for_a_while_and_then_gives_back(tmp_path: Path) -> None:
    a, b = Member(tmp_path / "a").has(range(8), 1), Member(tmp_path / "b").has(range(8, 16), 1)
    rebalance(16, a)
    assert a.share == set(range(16))
    a.has(range(8), 2)  # opened; the others take longer
    rebalance(16, a, b)
    assert (a.share, b.share) == (set(range(8)), set(range(8, 16)))


def test_who_has_no_state_yet_keeps_what_it_is_rebuilding(tmp_path: Path) -> None:
    a, b, c = (Member(tmp_path / name) for name in "abc")
    rebalance(16, a, b)
    before = a.share, b.share
    rebalance(16, a, b, c)
    assert a.share < before[0]
    assert b.share < before[1]
    assert sorted(len(member.share) for member in (a, b, c)) == [5, 5, 6]


def test_a_member_with_faust_s_own_assignor_keeps_what_it_has(tmp_path: Path) -> None:
    """A rolling upgrade: the old members tell what they were assigned last, and read what they are assigned."""
    old, older = Member(tmp_path / "old", PartitionAssignor), Member(tmp_path / "older", PartitionAssignor)
    rebalance(16, old, older)
    kept = old.share
    new = Member(tmp_path / "new").has(older.share, 1)
    rebalance(16, new, old)
    assert (old.share, new.share) == (kept, set(range(16)) - kept)


def test_a_member_with_faust_s_own_assignor_may_lead(tmp_path: Path) -> None:
    old, new = Member(tmp_path / "old", PartitionAssignor), Member(tmp_path / "new").has(range(16), 1)
    rebalance(16, old, new)
    assert (len(old.share), len(new.share)) == (8, 8)
    kept = new.share
    new.has(kept, 2)
    rebalance(16, new, old)
    assert new.share == kept


def test_what_a_member_tells_is_small_with_256_partitions(tmp_path: Path) -> None:
    """After a backup was restored epochs have sixteen digits. The broker keeps what all members tell in one record."""
    a = Member(tmp_path / "a").has(range(256), 1_800_000_000 << 20)
    rebalance(256, a)
    assert len(a.told().encode()) < 8_000


def test_states_of_partitions_that_are_not_there_do_no_harm(tmp_path: Path) -> None:
    a = Member(tmp_path / "a").has(range(32), 1)
    (tmp_path / "a" / "p-junk").mkdir()
    (tmp_path / "a" / "p-junk" / "EPOCH").write_text("1")
    (tmp_path / "a" / "p-0003" / "EPOCH").write_text("")
    rebalance(4, a)
    assert a.share == set(range(4))


def test_the_app_asks_this_assignor(tmp_path: Path) -> None:
    app = create_owners_app("127.0.0.1:1", "owners", TOPIC, Ownership("a", 1.0), tmp_path)
    assert type(app.assignor) is StickyAssignor
    assert app.conf.table_standby_replicas > 0
