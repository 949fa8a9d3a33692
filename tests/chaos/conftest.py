"""The cluster that chaos tests hurt: one for all of them, made whole again before each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectors.stack import KafkaBroker, default_cache_dir
from tests.chaos.cluster import Cluster
from tests.chaos.trial import Trial


@pytest.fixture(scope="package")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster of this folder's tests; `cluster` starts it."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="package")
def kafka_broker(shared_cluster: Cluster) -> KafkaBroker:
    """The cluster's own broker, alone: enough to tell which one it is, before anything else is started."""
    shared_cluster.stack.start_part("kafka")
    return KafkaBroker(shared_cluster.state, default_cache_dir())


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """The cluster, whole."""
    shared_cluster.make_whole()
    return shared_cluster


@pytest.fixture
def new_trial(cluster: Cluster, tmp_path: Path) -> Callable[[str], Trial]:
    """Begins a trial with a title; use what it returns in a `with`."""
    return lambda title: Trial(cluster, tmp_path, title)
