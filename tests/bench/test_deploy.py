"""The benchmark of a rolling restart, once and tiny: it runs, and no call fails. Its figures are not looked at."""

from __future__ import annotations

from contextlib import closing

from bench import deploy
from bench.balancer import Balancer
from bench.rolling_restart import ORDER
from fencepostd.local import Local


def test_every_role_is_restarted_under_load_and_no_call_fails(pairs: Local) -> None:
    ports = [pairs.stack.port_for(name) for name in ("api", "api-1")]
    with closing(Balancer(ports)) as balancer:
        found = deploy.measure(pairs, balancer, rate=10.0, period_s=1, watch_s=2.0, lasting=3)
    assert found["lasting: kept, runs"] == found["lasting: leases, runs"] == 3
    for when in ("before", "meanwhile", "after", *ORDER):
        assert found[f"{when}: started, runs/s"] > 0
        assert found[f"{when}: lateness min, ms"] >= 0
        assert found[f"{when}: failed, calls"] == 0
    assert all(found[f"{role}: gone after max, s"] > 0 for role in ORDER)
