"""One Kafka and one Postgres for all mutants: each is tried on them with a database and topics of its own."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

import psycopg

from connectors.stack import PostgresServer, default_cache_dir
from connectors.stack.part import Say
from connectors.stack.register import Register
from streams.topics import Topics
from tests.chaos.checker import Violation
from tests.chaos.cluster import ROOT
from tests.chaos.installation import Addresses, Installation
from tests.chaos.links import Link, Links
from tests.chaos.mutants.patches import Mutant, TrialName
from tests.chaos.mutants.source_tree import copy_source
from tests.chaos.mutants.stand import PARTITIONS, Stand
from tests.chaos.mutants.trials import TRIALS
from tests.chaos.proxied_kafka import Listener, ProxiedKafka

LINKED = ("relay", "streams-0")  # that a trial may cut off from Kafka


class Bench(NamedTuple):
    """Place for one mutant at a time. to_kafka: by role, how those reach Kafka that may be cut off."""

    to_kafka: Mapping[str, Link]


class Workshop:
    """Use it as a context manager: the servers end with it. benches: how many mutants are tried side by side."""

    def __init__(self, state: Path, benches: int, say: Say) -> None:
        self._state, self._say = state, say
        self._links = Links()
        claim = Register(state.resolve()).claim_port
        self._benches = [{role: f"bench-{number}-{role}" for role in LINKED} for number in range(benches)]
        self._listeners = {
            name: Listener(claim(f"kafka for {name}"), claim(f"{name} to kafka"))
            for names in self._benches
            for name in names.values()
        }
        self._kafka = ProxiedKafka(state, self._listeners, say=say)
        self._postgres = PostgresServer(state, default_cache_dir(), say=say)
        self.benches: Sequence[Bench] = ()

    def __enter__(self) -> Workshop:
        try:
            self._kafka.start()
            self._postgres.start()
        except BaseException:
            self.__exit__()
            raise
        self.benches = [Bench({role: self._link(name) for role, name in names.items()}) for names in self._benches]
        return self

    def _link(self, name: str) -> Link:
        listener = self._listeners[name]
        return self._links.add(name, listener.told_port, listener.port)

    def __exit__(self, *_: object) -> None:
        self._kafka.stop()
        self._postgres.stop()
        self._links.close()

    def try_out(self, bench: Bench, trial: TrialName, mutant: Mutant | None, converge_s: float) -> list[Violation]:
        """What the rules find, of the mutant or, without one, of the product as it is."""
        name = re.sub(r"\W+", "_", (mutant.name if mutant else f"unmutated {trial}").lower())[:50]
        folder = self._state / name
        source = ROOT if mutant is None else copy_source(folder / "source")
        if mutant is not None:
            mutant.apply(source)
        installation = self._installation(bench, folder, name, TRIALS[trial].roles, source)
        try:
            installation.up()
            violations = self._run(bench, trial, installation, converge_s)
        finally:
            installation.down()
        shutil.rmtree(folder)  # of what failed it stays, to be looked into
        return violations

    def _run(self, bench: Bench, trial: TrialName, installation: Installation, converge_s: float) -> list[Violation]:
        stand = Stand(installation, converge_s)
        try:
            asyncio.run(TRIALS[trial].run(stand, bench.to_kafka))
            return stand.judge()
        finally:
            for link in bench.to_kafka.values():
                link.open()
            stand.close()

    def _installation(self, bench: Bench, folder: Path, name: str, roles: Sequence[str], source: Path) -> Installation:
        servers = Addresses(self._kafka.bootstrap, self._database(name))
        linked = {role: servers._replace(kafka=f"127.0.0.1:{link.port}") for role, link in bench.to_kafka.items()}
        return Installation(
            folder,
            servers,
            roles,
            say=self._say,
            topics=Topics(name),
            partitions=PARTITIONS,
            source=source,
            told=lambda role: linked.get(role, servers),
        )

    def _database(self, name: str) -> str:
        with psycopg.connect(self._postgres.dsn, autocommit=True) as conn:
            conn.execute(f'CREATE DATABASE "{name}"')
        return urlunsplit(urlsplit(self._postgres.dsn)._replace(path=f"/{name}"))
