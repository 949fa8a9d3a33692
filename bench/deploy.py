"""Every role is restarted, process after process, while runs are executed: how late these start, and what fails.

    python -m bench.deploy [--rate 200] [--period 60] [--watch 60] [--lasting 50]

There are two of every role of which there may be two, and a balancer before the APIs. The load is jobs that fire every
minute, spread evenly over it, executed by one worker process of the SDK; another one has runs in hand that last from
before the restarts until after them, by leases of 5 s. What must hold: no call fails, every one of these leases lasts,
and of the runs that start meanwhile 99 in 100 are no later than 1 s.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

import click

from bench.balancer import NOTICE_S, Balancer
from bench.cluster import cluster, report, say
from bench.compare import Figures
from bench.lasting_worker import lasting_runs
from bench.rolling_restart import ORDER, Restarted, in_order, restart, role_of
from bench.soak import QUEUE, Load
from bench.steady_worker import Seen, SteadyWorker, steady_worker, together
from fencepostd.local import Local, names_of

PAIRS = {"owners": 2, "apis": 2, "relays": 2}


class Step(NamedTuple):
    """The restart of one process. seconds: how long it took. seen: what the worker saw of it."""

    restarted: Restarted
    seconds: float
    seen: Seen


def measure(local: Local, balancer: Balancer, rate: float, period_s: int, watch_s: float, lasting: int) -> Figures:
    """balancer: of the APIs."""
    load, url = Load(local, period_s), balancer.url
    with steady_worker(local, QUEUE, url) as worker, lasting_runs(local, lasting, url) as lasts:
        load.raise_to(rate)
        worker.watch("warm-up", time.monotonic() + watch_s)
        before = worker.watch("before", time.monotonic() + watch_s)
        steps = deployed(local, balancer, worker)
        after = worker.watch("after", time.monotonic() + watch_s)
        leases = lasts.end()
    return {
        "asked for, runs/s": rate,
        **before,
        **figures("meanwhile", steps),
        **after,
        **leases,
        **{
            name: figure
            for role in ORDER
            for name, figure in by_role(role, [step for step in steps if role_of(step.restarted.part) == role]).items()
        },
    }


def deployed(local: Local, balancer: Balancer, worker: SteadyWorker) -> list[Step]:
    """Restart every process, one after the other."""
    steps = []
    for part in in_order(status.name for status in local.stack.status()):
        began = time.monotonic()
        restarted = restart(local, part, balancer)
        steps.append(Step(restarted, time.monotonic() - began, worker.look()))
        say(f"{part}: gone after {restarted.ended_s:.1f} s, ready {restarted.began_s:.1f} s later")
    return steps


def figures(when: str, steps: Sequence[Step]) -> Figures:
    return together(step.seen for step in steps).figures(when, sum(step.seconds for step in steps))


def by_role(role: str, steps: Sequence[Step]) -> Figures:
    return {
        **figures(role, steps),
        f"{role}: gone after max, s": max(step.restarted.ended_s for step in steps),
        f"{role}: ready after max, s": max(step.restarted.began_s for step in steps),
    }


@click.command(help=__doc__)
@click.option("--rate", default=200.0, show_default=True, help="runs a second")
@click.option("--period", "period_s", default=60, show_default=True, help="seconds after which each job fires again")
@click.option("--watch", "watch_s", default=60.0, show_default=True, help="seconds, before and after")
@click.option("--lasting", default=50, show_default=True, help="runs that last through all of it")
def main(rate: float, period_s: int, watch_s: float, lasting: int) -> None:
    with cluster(**PAIRS, notice_s=NOTICE_S) as local:
        ports = [local.stack.port_for(name) for name in names_of("api", PAIRS["apis"])]
        with closing(Balancer(ports)) as balancer:
            report("deploy", measure(local, balancer, rate, period_s, watch_s, lasting))


if __name__ == "__main__":
    main()
