"""What the rules of job_rules want to know of an installation at the end."""

from __future__ import annotations

from collections.abc import Mapping

from tests.chaos.installation import Installation
from tests.chaos.job_rules import Holding
from tests.chaos.observations import consumed_offsets, topic_ends


def read_holdings(installation: Installation) -> Mapping[int, Holding]:
    """Of every partition."""
    servers = installation.servers
    said = {owner: set(installation.held_by(owner)) for owner in installation.owners}
    consumed = consumed_offsets(servers.postgres)
    ends = topic_ends(servers.kafka, installation.topics.commands)
    return {
        partition: Holding(
            owner, tuple(name for name, held in said.items() if partition in held), consumed[partition], ends[partition]
        )
        for partition, owner in installation.holders().items()
    }
