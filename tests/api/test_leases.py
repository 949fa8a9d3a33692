"""POST /v1/queues/{queue}/lease."""

from __future__ import annotations

from tests.api.conftest import Caller
from tests.api.owner import Owner


async def test_lease_gives_due_runs_with_their_token_and_payload(worker: Caller, owner: Owner) -> None:
    [run_id] = await owner.make_due(payload='{"to": ["a@b.c"]}')
    [run] = await worker.lease(waitSeconds=5)
    assert run["runId"] == str(run_id)
    assert run["payload"] == {"to": ["a@b.c"]}
    assert (run["attempt"], run["leaseToken"], run["queue"]) == (1, 1, "mail")
    assert run["leaseExpiresAt"].endswith("Z")
    done = await worker.post(f"/v1/runs/{run_id}/complete", {"leaseToken": 1, "result": {"ok": True}})
    assert (done.status_code, done.json()) == (200, {})
    assert await worker.lease() == []
