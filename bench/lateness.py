"""How late runs start: one-off jobs spread over some seconds, from the due time to the handler's first line.

    python -m bench.lateness [--runs 200] [--seconds 20] [--spike 5000]

The clocks of the ledger and the worker are one here, so the figure needs no correction. `--spike N` also measures N
runs that are all due in the same second.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

from bench.cluster import cluster, report, wait_until
from fencepost import CommandProducer, JobSpec, at
from fencepostd.local import LOCAL_TENANT, Local


def main() -> None:
    options = parse()
    with cluster() as local:
        figures = {"runs": options.runs, **measure(local, "spread", options.runs, options.seconds)}
        if options.spike:
            spike = measure(local, "spike", options.spike, 1.0)
            figures |= {f"{options.spike} in a second: {key}": value for key, value in spike.items()}
    report("lateness", figures)


def measure(local: Local, queue: str, runs: int, seconds: float) -> dict[str, float]:
    """Lateness figures in milliseconds of `runs` one-offs spread evenly over `seconds`."""
    begin = datetime.now(UTC) + timedelta(seconds=6)
    with CommandProducer(local.stack.bootstrap, tenant=LOCAL_TENANT) as producer:
        for number in range(runs):
            due = begin + timedelta(seconds=seconds * number / runs)
            producer.create_job(JobSpec(queue=queue, schedule=at(due)))
    wait_until(local.stack.dsn, f"SELECT count(*) FROM runs WHERE queue = '{queue}'", runs)
    command = [sys.executable, "-m", "bench.noop_worker", local.url, local.token, queue, str(runs), "1000"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 120)
    lateness_ms = sorted(json.loads(done.stdout)["lateness_ms"])
    return {
        "p50, ms": lateness_ms[len(lateness_ms) // 2],
        "p99, ms": lateness_ms[int(len(lateness_ms) * 0.99)],
        "max, ms": lateness_ms[-1],
        "min, ms": lateness_ms[0],
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--spike", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
