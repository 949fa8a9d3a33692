"""What every benchmark is: a size, contenders on one stage, a command of its own; `bench.all` runs them together."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import click

from bench.cluster import cluster, report
from bench.compare import Comparison, Contender, compare, table
from bench.peers.install import PEERS, install
from bench.peers.peer import Peer
from fencepostd.local import Local

PEERS_HELP = f"all, none, or some of {','.join(PEERS)}"


@dataclass(frozen=True)
class Stage:
    """Where contenders meet: one running Fencepost, and the peers that could be installed. skipped: why others not."""

    local: Local
    peers: Sequence[Peer] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def dsn(self) -> str:
        """The Postgres that all of them share; peers have databases of their own in it."""
        return self.local.stack.dsn


@contextmanager
def stage(peers: Sequence[str] = (), **options: Any) -> Iterator[Stage]:
    """A stage of its own. peers: names of bench/peers/versions.toml. options: those of Local."""
    _raise_file_limit()
    installed, skipped = install(peers)
    with cluster(**options) as local:
        own = [Peer(each, local.stack.dsn) for each in installed]
        try:
            yield Stage(local, own, skipped)
        finally:
            for peer in own:
                peer.close()


def _raise_file_limit() -> None:
    """Thousands of waiting connections are a file each, in the client and in the API, which inherits this."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@dataclass(frozen=True)
class Benchmark:
    """size: a NamedTuple of defaults, each field an option of the command. rounds: 1 where one leaves its traces."""

    name: str
    about: str
    size: Any
    contenders: Callable[[Stage, Any], dict[str, Contender]]
    rounds: int = 3

    def run(self, on: Stage, size: Any, rounds: int) -> Comparison:
        """Measure, and keep the figures under bench/results/."""
        done = compare(self.name, self.contenders(on, size), rounds, on.skipped)
        report(self.name, done.flat() | size._asdict() | {"rounds": rounds}, quiet=True)
        return done

    def main(self) -> None:
        """The command line of `python -m bench.NAME`."""
        sizes = [_option(name, value) for name, value in self.size._asdict().items()]
        click.Command(self.name, params=[*sizes, *_common(self.rounds)], callback=self._command, help=self.about)()

    def _command(self, rounds: int, peers: str, kafka: str | None, postgres: str | None, **size: Any) -> None:
        with stage(names_of(peers), kafka=kafka, postgres=postgres) as on:
            click.echo(table([self.run(on, self.size._replace(**size), rounds)]))


def names_of(peers: str) -> list[str]:
    """What `--peers` says: names with commas between, `all`, or `none`."""
    return {"all": list(PEERS), "none": []}.get(peers, peers.split(","))


def _option(name: str, default: Any) -> click.Option:
    return click.Option([f"--{name.replace('_', '-')}"], default=default, show_default=True)


def _common(rounds: int) -> list[click.Parameter]:
    return [
        click.Option(["--rounds"], default=rounds, show_default=True, help="how often each contender has its turn"),
        _peers(),
        click.Option(["--kafka"], help="a running broker, instead of one of its own"),
        click.Option(["--postgres"], help="the DSN of an empty database, instead of a server of its own"),
    ]


def _peers() -> click.Option:
    return click.Option(["--peers"], default="none", show_default=True, help=PEERS_HELP)
