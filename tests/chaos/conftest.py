"""The cluster that chaos tests hurt: one a module, made whole again before each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectors.stack import KafkaBroker, default_cache_dir
from tests.chaos.cluster import Cluster
from tests.chaos.trial import Trial


@pytest.fixture(scope="module")
def module_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster of a module; `cluster` starts it."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def kafka_broker(module_cluster: Cluster) -> KafkaBroker:
    """The cluster's own broker, alone: enough to tell which one it is, before anything else is started."""
    module_cluster.stack.start_part("kafka")
    return KafkaBroker(module_cluster.state, default_cache_dir())


@pytest.fixture
def cluster(module_cluster: Cluster) -> Cluster:
    """The module's cluster, whole."""
    module_cluster.make_whole()
    return module_cluster


@pytest.fixture
def new_trial(cluster: Cluster, tmp_path: Path) -> Callable[[str], Trial]:
    """Begins a trial with a title; use what it returns in a `with`."""
    return lambda title: Trial(cluster, tmp_path, title)
