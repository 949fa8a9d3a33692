"""The group's assignment: partitions go where their timing state is.

Whoever joins tells of which partitions it has a state, and of which epoch; the group's leader shares out by that
(streams/partition_shares.py). Told in Faust's own form and under its name, with one field more. So a member that knows
nothing of it, as in a rolling upgrade, can be in the group and even lead it: then partitions are shared out as Faust
does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from faust.assignor import PartitionAssignor
from faust.assignor.client_assignment import ClientAssignment

from streams.kept_states import kept_epochs
from streams.partition_shares import NOTHING_YET, share_out

_KEPT = "kept_epochs"
_OWNED_NOW = 1 << 62  # an epoch, of what a member that tells none was assigned last: nobody's state is newer


class StickyAssignor(PartitionAssignor):  # type: ignore[misc]
    """Of an OwnersApp. Called in the thread of its consumer."""

    def metadata(self, topics: set[str]) -> ConsumerProtocolMemberMetadata:
        """What this member tells when it joins; some ten bytes a partition."""
        assigned = self._assignment.actives.get(self.app.commands_topic, ())
        kept = dict.fromkeys(assigned, NOTHING_YET) | kept_epochs(self.app.state_folder)
        told = msgspec.json.decode(self._metadata.dumps()) | {_KEPT: kept}
        return ConsumerProtocolMemberMetadata(self.version, list(topics), msgspec.json.encode(told))

    def _perform_assignment(
        self, cluster: ClusterMetadata, member_metadata: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Only the group's leader is asked."""
        topic = self.app.commands_topic
        told = {member: msgspec.json.decode(metadata.user_data) for member, metadata in member_metadata.items()}
        self._member_urls = {member: each["url"] for member, each in told.items()}
        shares = share_out(
            cluster.partitions_for_topic(topic) or set(), {member: _kept(topic, each) for member, each in told.items()}
        )
        assignments = {
            member: ClientAssignment(actives={topic: sorted(share)}, standbys={}) for member, share in shares.items()
        }
        return self._protocol_assignments(assignments, {}, {}, {topic: 0})  # type: ignore[no-any-return]


def _kept(topic: str, told: Mapping[str, Any]) -> dict[int, int]:
    """The epochs of a member's states, by partition."""
    if _KEPT in told:
        return {int(partition): epoch for partition, epoch in told[_KEPT].items()}
    return dict.fromkeys(told["assignment"]["actives"].get(topic, ()), _OWNED_NOW)
