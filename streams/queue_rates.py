"""Which queues have a rate, as a process last read it: so that owners need not ask where none has ever been set."""

from __future__ import annotations

from collections.abc import Mapping

from ledger.queue_settings import QueueName, RateVersion


class QueueRates:
    """What the rates are is read where they are used, in the transaction; here is only whether they have changed."""

    def __init__(self) -> None:
        self._versions: Mapping[QueueName, RateVersion] = {}

    def any_set(self) -> bool:
        """Whether some queue has a rate."""
        return any(version.is_set for version in self._versions.values())

    def changed(self, known: Mapping[QueueName, int]) -> dict[QueueName, int]:
        """The queues whose rate has another version than is known, with that."""
        return {queue: found.version for queue, found in self._versions.items() if known.get(queue) != found.version}

    def hear(self, versions: Mapping[QueueName, RateVersion]) -> bool:
        """As the ledger has them; whether they have changed."""
        before, self._versions = self._versions, versions
        return versions != before
