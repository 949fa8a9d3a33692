"""Apache Kafka's jars, fetched once by Maven into the cache folder, and the Java to run them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from connectors.stack.errors import ApacheKafkaUnavailable
from connectors.stack.part import REMIND_S, Say
from connectors.stack.register import locked

KAFKA_VERSION = "4.3.1"
LOG4J_VERSION = "2.25.4"  # the one kafka_2.13 depends on; the slf4j binding is what it leaves to its users
MIN_JAVA = 17
FETCH_DEADLINE_S = 600

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>fencepost</groupId>
  <artifactId>local-kafka</artifactId>
  <version>{KAFKA_VERSION}</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>{LOG4J_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


def find_java() -> str:
    """The java of JAVA_HOME, else of PATH. Raises ApacheKafkaUnavailable if there is none or it is too old."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        raise ApacheKafkaUnavailable("there is no java on this machine")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < MIN_JAVA:
        raise ApacheKafkaUnavailable(f"{java} is not Java {MIN_JAVA} or newer")
    return java


def fetch_jars(cache_dir: Path, say: Say) -> Path:
    """The folder with Kafka's jars; Maven fetches them when the cache has none yet.

    Safe to call from several processes: one fetches, the others wait for it.
    Raises ApacheKafkaUnavailable if Maven is missing or cannot reach its registry.
    """
    jars = cache_dir / f"kafka-{KAFKA_VERSION}"
    with locked(cache_dir / "kafka.lock"):
        if not jars.is_dir():
            _fetch_into(jars, say)
    return jars


def _fetch_into(jars: Path, say: Say) -> None:
    if shutil.which("mvn") is None:
        raise ApacheKafkaUnavailable("there is no Maven (mvn) on this machine to fetch Apache Kafka with")
    say(f"fetching Apache Kafka {KAFKA_VERSION} with Maven into {jars} (45 MB, once)")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=jars.parent, prefix="fetching-") as scratch:
        pom = Path(scratch, "pom.xml")
        pom.write_text(POM)
        _run_maven(pom, Path(scratch, "jars"), say)
        # Renamed whole, so that a fetch that was cut off never looks complete.
        Path(scratch, "jars").rename(jars)
    say(f"fetched in {time.monotonic() - began:.1f} s")


def _run_maven(pom: Path, target: Path, say: Say) -> None:
    argv = ["mvn", "-q", "-B", "--strict-checksums", "-f", str(pom), "dependency:copy-dependencies"]
    argv += ["-DincludeScope=runtime", f"-DoutputDirectory={target}"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as maven:
        output = _await_maven(maven, say)
    if maven.returncode != 0:
        first_line = (output.strip() or "it gave no reason").splitlines()[0]
        raise ApacheKafkaUnavailable(f"Maven could not fetch Apache Kafka: {first_line}")


def _await_maven(maven: subprocess.Popen[str], say: Say) -> str:
    """What it printed, once it has ended; with a reminder every few seconds."""
    began = time.monotonic()
    while True:
        try:
            return maven.communicate(timeout=REMIND_S)[0]
        except subprocess.TimeoutExpired:
            elapsed_s = time.monotonic() - began
        if elapsed_s > FETCH_DEADLINE_S:
            maven.kill()
            raise ApacheKafkaUnavailable(f"Maven did not finish within {FETCH_DEADLINE_S} s")
        say(f"still fetching, {elapsed_s:.0f} s")
