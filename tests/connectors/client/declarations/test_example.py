"""The example says what it means to."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fencepost.declarations.job_file import read_job_file
from tests.connectors.client.declarations.declared import TENANT, job_planned, planned

EXAMPLE = Path(__file__).parents[4] / "examples" / "jobs.yaml"


def test_the_example_can_be_planned_and_fires_when_its_comments_say() -> None:
    declared = read_job_file(EXAMPLE, tenant=TENANT)
    plan = planned(declared)
    assert (plan.set, {each.action for each in plan.jobs}) == ("examples", {"add"})
    quarters = job_planned(plan, "sync-stock").occurrences
    assert quarters.added[0] == datetime(2026, 3, 2, 10, 45, tzinfo=UTC)
    assert len(quarters.added) == 4 * 24 * 7
    assert job_planned(plan, "new-year").pending_after == datetime(2026, 12, 31, 15, tzinfo=UTC)
