"""Every benchmark, once and tiny: it runs, and writes its figures with their units. What they say is not looked at."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import bench.cluster
from bench import backlog, drain, enqueue, fairness, heartbeats, idle, lateness, mix, overload, soak, takeover
from bench.all import BENCHES
from bench.benchmark import Stage
from bench.compare import OURS, table
from fencepostd.local import Local

TINY: dict[str, Any] = {
    "lateness": lateness.Size(runs=3, seconds=0.3, spike=3, notice=1.0),
    "mix": mix.Size(load=0.02, drain=20, notice=2.0, step=1),
    "drain": drain.Size(runs=20, batch=10),
    "enqueue": enqueue.Size(jobs=40, http_jobs=4, one_by_one=2),
    "heartbeats": heartbeats.Size(leases=4, seconds=0.2, batch=2),
    "overload": overload.Size(
        reads=3, creates=3, outcomes=3, leases=3, seconds=0.3, pause=0.1, rate=10.0, stock=20, notice=1.0
    ),
    "takeover": takeover.Size(timers=40),
    "idle": idle.Size(schedules=4, queues=4, seconds=0.3),
}
EXPECTED = {
    "lateness": {"spread p99, ms", "spike p99, ms", "floor: spike p99, ms, ratio to ours"},
    "mix": {"peak p99, ms", "peak, runs/s", "drained without schedules, runs/s", "floor: peak p99, ms, ratio to ours"},
    "drain": {"drained, runs/s", "WAL, bytes/run", "history lag at the end, s", "floor: drained, runs/s"},
    "enqueue": {"bulk, jobs/s", "bulk, one a record, jobs/s", "HTTP, 32 callers, jobs/s", "floor (SQL): bulk, jobs/s"},
    "heartbeats": {"singly, heartbeats/s", "CPU singly, µs/heartbeat", "floor (HTTP): singly, heartbeats/s"},
    "overload": {"lateness p99, ms", "leases shed, %", "creates overrun: creates offered, calls/s"},
    "takeover": {"from the ledger, s", "from the local state, s", "memory after a start, MB/million timers"},
    "idle": {"CPU with idle schedules, % of a core", "CPU with waiting queues, % of a core"},
}
UNIT = re.compile(r".+, (?:[\w%µ]+/[\w ]+|ms|s|MB|jobs|queues|runs|%(?: of a core)?)(?:, ratio to ours)?")


@pytest.fixture(scope="module")
def stage(local: Local) -> Stage:
    return Stage(local)


@pytest.mark.parametrize("name", BENCHES)
def test_every_benchmark_writes_its_figures_with_their_units(
    name: str, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.cluster, "RESULTS", tmp_path / "results")
    found = BENCHES[name].run(stage, TINY[name], 1)
    assert found.skipped == {}
    assert name in table([found])
    written = json.loads((tmp_path / "results" / f"{name}.json").read_text())
    assert set(written) >= EXPECTED[name]
    assert set(written) - {*TINY[name]._fields, "rounds"} == set(found.flat())
    assert [figure for figure in found.flat() if not UNIT.fullmatch(figure)] == []
    assert all(value >= 0 for figure, value in found.medians[OURS].items() if "memory" not in figure)


def test_a_soak_watches_lateness_sizes_memory_and_files(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "SAMPLE_S", 1.2)
    found = soak.measure(stage.local, minutes=2, share=0.7, rate=10.0, period_s=1)
    assert found["runs/s"] > 0
    assert found["earliest of all, ms"] >= 0
    told = {"rows of runs, MB", "indexes of jobs, MB", "memory of api, MB", "files of streams-0, open"}
    assert set(found) >= told | {f"{name}, ratio to the second quarter" for name in told}


def test_a_flood_drains_beside_runs_on_time(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "NOTICE_S", 1.5)
    found = fairness.measure(stage.local, runs=300, rate=10.0, seconds=1.0, pollers=2, quota=50.0)
    assert found["flood, runs"] == 300
    assert all(found[f"{scene}: lateness p99, ms"] >= 0 for scene in ("alone", "beside the flood"))
    assert [figure for figure in found if not UNIT.fullmatch(figure)] == []


def test_a_backlog_is_written_and_hinted_and_others_work_beside_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ONE_OFFS": 3, "SPREAD_S": 0.3, "NOTICE_S": 1.0, "LOOK_S": 0.5}.items():
        monkeypatch.setattr(backlog, name, value)
    found = backlog.measure(stage.local, runs=400, queues=20, tenants=4, drain=20)
    assert found["backlog, runs"] == 400
    assert found["beside the backlog: spread min, ms"] >= 0
    assert found["beside the backlog: drained, runs/s"] > 0
