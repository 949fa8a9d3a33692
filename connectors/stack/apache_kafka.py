"""Apache Kafka as one KRaft node: its settings, its storage and the command that runs it."""

from __future__ import annotations

import base64
import subprocess
import time
import uuid
from pathlib import Path

from connectors.stack.errors import PartFailed
from connectors.stack.kafka_jars import KAFKA_VERSION, fetch_jars, find_java
from connectors.stack.part import Say

HEAP = "-Xmx512m"
# Measured on two cores, against G1 and the second compiler: ready in 3.4 s instead of 6.3 s, and half the CPU time
# for the same 300,000 records.
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


def apache_argv(home: Path, cache_dir: Path, port: int, controller_port: int, say: Say) -> list[str]:
    """The command for a node whose storage is under `home`: fetched, configured and formatted where needed.

    Raises ApacheKafkaUnavailable if Java, Maven or its registry is missing, PartFailed if formatting fails.
    """
    java = find_java()
    jars = fetch_jars(cache_dir, say)
    home.mkdir(parents=True, exist_ok=True)
    logging, properties = home / "log4j2.properties", home / "server.properties"
    logging.write_text(LOGGING)
    properties.write_text(SERVER_PROPERTIES.format(port=port, controller_port=controller_port, log_dir=log_dir(home)))
    run = [java, *JVM_OPTIONS, f"-Dlog4j2.configurationFile={logging}", "-cp", f"{jars}/*"]
    if not (log_dir(home) / "meta.properties").exists():
        _format(run, properties, say)
    return [*run, "kafka.Kafka", str(properties)]


def log_dir(home: Path) -> Path:
    """Where the node keeps its records."""
    return home / "data"


def _format(run: list[str], properties: Path, say: Say) -> None:
    began = time.monotonic()
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    argv = [*run, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", str(properties)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PartFailed("kafka", "its storage could not be formatted", done.stdout + done.stderr)
    say(f"formatted storage for Apache Kafka {KAFKA_VERSION} in {time.monotonic() - began:.1f} s")
