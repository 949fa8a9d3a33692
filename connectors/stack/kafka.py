"""One Kafka broker on loopback: real Apache Kafka, or tansu where Java or Maven is missing."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Literal

from connectors.stack.apache_kafka import apache_argv, log_dir
from connectors.stack.errors import ApacheKafkaUnavailable, StackError
from connectors.stack.health import kafka_health
from connectors.stack.part import Part, Say, silent
from connectors.stack.tansu import CAVEAT, tansu_argv

Flavour = Literal["apache", "tansu"]

BROKER_VARIABLE = "FENCEPOST_BROKER"  # "tansu" forces the fallback, "apache" forbids it
READY_DEADLINE_S = 90.0
STOP_DEADLINE_S = 30.0


class KafkaBroker:
    """A broker whose address and data stay the same over stop, kill -9 and start. tansu keeps no data."""

    def __init__(self, state_dir: Path, cache_dir: Path, port: int | None = None, *, say: Say = silent) -> None:
        self.part = Part("kafka", state_dir, say)
        self._home = state_dir.resolve() / "kafka"
        self._cache_dir = cache_dir.resolve()
        self._wanted_port = port

    @property
    def port(self) -> int:
        """Raises StackError before the first start."""
        port = self.part.register.port("kafka")
        if port is None:
            raise StackError("kafka was never started in this state folder")
        return port

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        return self.part.pid

    @property
    def flavour(self) -> Flavour:
        """Which broker runs, or ran last. Raises StackError before the first start."""
        record = self.part.register.part("kafka")
        if record is None:
            raise StackError("kafka does not run in this state folder")
        return "tansu" if record.flavour == "tansu" else "apache"

    def start(self) -> None:
        """Start it unless it runs, and wait until it answers.

        Raises PartFailed with the tail of its log if it does not come up, and ApacheKafkaUnavailable where falling
        back to tansu is forbidden or would hide records of an Apache Kafka in this state folder.
        """
        if self.pid is None:
            self.part.register.claim_port("kafka", self._wanted_port)
            flavour, argv = self._choose()
            self.part.say(f"starting {flavour} on {self.bootstrap}")
            self.part.launch(argv, port=self.port, flavour=flavour)
        self.part.await_ready(partial(kafka_health, self.bootstrap), READY_DEADLINE_S)

    def stop(self) -> None:
        """Clean shutdown, SIGKILL after half a minute."""
        self.part.end(STOP_DEADLINE_S)

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        self.part.kill()

    def _choose(self) -> tuple[Flavour, list[str]]:
        forced = os.environ.get(BROKER_VARIABLE)
        if forced == "tansu":
            return self._fall_back(f"{BROKER_VARIABLE}=tansu")
        controller_port = self.part.register.claim_port("kafka-controller")
        try:
            argv = apache_argv(self._home, self._cache_dir, self.port, controller_port, self.part.say)
        except ApacheKafkaUnavailable as reason:
            if forced == "apache" or log_dir(self._home).exists():
                raise
            return self._fall_back(str(reason))
        return "apache", argv

    def _fall_back(self, reason: str) -> tuple[Flavour, list[str]]:
        self.part.say(f"WARNING: {reason}; using the tansu broker instead: {CAVEAT}")
        return "tansu", tansu_argv(self.port)
