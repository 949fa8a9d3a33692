"""Whether a run waits since its queue, or its concurrency key, has as many live runs as it may: as it is now.

Nobody notes when a queue was full. It is taken to have been since the oldest of those that are live now was leased.
"""

from __future__ import annotations

from ledger.connection import Connection
from ledger.live_limits import read_live_limit
from ledger.permits import count_permits
from ledger.queue_settings import QueueName
from ledger.runs import RunState
from schemas.waits import Hindrance


async def while_full(home: Connection, run: RunState) -> list[Hindrance]:
    """Of a run that waits."""
    queue, key = QueueName(run.tenant, run.queue), run.concurrency_key
    limit = await read_live_limit(home, queue)
    if limit is None:
        return []
    found = []
    of_queue = await count_permits(home, queue)
    if limit.max_live is not None and of_queue.since and of_queue.live >= limit.max_live:
        sentence = f"queue {run.queue} had {of_queue.live} live runs, and may have {limit.max_live}"
        found.append(Hindrance("queue_full", of_queue.since, None, sentence))
    if key is not None and limit.max_live_per_key is not None:
        of_key = await count_permits(home, queue, key)
        if of_key.since and of_key.live >= limit.max_live_per_key:
            sentence = f"concurrency key {key} had {of_key.live} live runs, and may have {limit.max_live_per_key}"
            found.append(Hindrance("key_full", of_key.since, None, sentence))
    return found
