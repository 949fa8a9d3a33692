"""Everything the API measures, in one list: name, unit in the name, what it means."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

_FAST_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000)
_LATENESS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 15_000, 60_000, 600_000)
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)


class Measure(NamedTuple):
    """One metric. The unit is the end of its name; a count has none."""

    name: str
    kind: Literal["counter", "gauge", "distribution"]
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


MEASURES = (
    Measure("requests", "counter", "Answers, by route and status.", ("route", "status")),
    Measure(
        "request_ms", "distribution", "How long an answer took, waiting in a long-poll included.", ("route",), _FAST_MS
    ),
    Measure("requests_shed", "counter", "Answers 503 because too much was in hand, by class.", ("class",)),
    Measure("requests_in_hand", "gauge", "Requests that are worked on, without those that wait for others."),
    Measure("commands_waiting", "gauge", "Requests that wait for Kafka, or for their command's effect."),
    Measure("leases", "counter", "Leases given.", ("lane",)),
    Measure("lease_batch_runs", "distribution", "Runs in the answer of one lease call.", (), _COUNTS),
    Measure("leases_given_back", "counter", "Leases released because their client had hung up."),
    Measure("wasted_claims", "counter", "Ids from the ready index that could not be leased."),
    Measure("lateness_ms", "distribution", "From a run's due time to its lease.", (), _LATENESS_MS),
    Measure("hint_lag_ms", "distribution", "From the owner's hint to this process.", (), _FAST_MS),
    Measure("hint_late_ms", "distribution", "By how much hints that were told ahead came too late.", (), _FAST_MS),
    Measure("hints", "counter", "Run ids told by hints."),
    Measure("undecodable_hints", "counter", "Records of the ready topic that are no hints."),
    Measure("ready_polls", "counter", "Looks into the ledger for due runs that no hint told."),
    Measure("polled_runs", "counter", "Due runs that those looks found and the index did not know."),
    Measure("lease_quota_waits", "counter", "Waits of lease calls for their tenant's quota."),
    Measure("lease_quota_part", "gauge", "What this process may give of each tenant's quota, of 1; 0 without quotas."),
    Measure(
        "tenant_line_waits", "counter", "Waits of calls for their turn, of tenants that use more than their share."
    ),
    Measure("tenant_calls_in_line", "gauge", "Calls that wait for their turn."),
    Measure("flood_pace_calls", "gauge", "How many calls a round there may be beyond their tenants' share."),
    Measure("long_polls_waiting", "gauge", "Lease calls that wait for a run."),
    Measure("ready_index_runs", "gauge", "Run ids in the ready index."),
    Measure("permits_out", "gauge", "Permits of queues with a limit of live runs that are out, of all tenants."),
    Measure("ready_index_dropped", "counter", "Run ids that did not fit into the ready index."),
    Measure(
        "commit_batch_runs", "distribution", "Runs that one group-committed transaction wrote.", ("kind",), _COUNTS
    ),
    # What api/watchdogs.py sees of others, when somebody reads it. A shard that is away has ledger_up, and no more.
    Measure("ledger_up", "gauge", "1 when the shard answered.", ("shard",)),
    Measure("unowned_partitions", "gauge", "Partitions without an owner.", ("shard",)),
    Measure("unowned_s", "gauge", "For how long one of them has had none, at the most.", ("shard",)),
    Measure("silent_partitions", "gauge", "Partitions whose owner has not spoken for 15 s.", ("shard",)),
    Measure("silent_s", "gauge", "For how long an owner has not spoken, at the most.", ("shard",)),
    Measure("outbox_rows", "gauge", "Outbox rows that wait for the relay.", ("shard",)),
    Measure("outbox_lag_s", "gauge", "How long the oldest of them has waited.", ("shard",)),
    Measure("standbys", "gauge", "Standbys that stream the shard's WAL.", ("shard",)),
    Measure("synchronous_standbys", "gauge", "Those of them that commits wait for.", ("shard",)),
    Measure("sync_standby_missing", "gauge", "1 when commits wait for a standby and none is there.", ("shard",)),
    Measure("standby_replay_lag_s", "gauge", "How far the last standby is behind, in time.", ("shard",)),
    Measure("standby_replay_lag_bytes", "gauge", "How far the last standby is behind, in WAL.", ("shard",)),
    Measure("oldest_snapshot_s", "gauge", "How old the session is that holds vacuum back the most.", ("shard",)),
    Measure("oldest_snapshot_transactions", "gauge", "How many transactions it has held back.", ("shard",)),
    Measure("clock_skew_s", "gauge", "How far this process's clock is ahead of the shard's, for certain.", ("shard",)),
    Measure("history_up", "gauge", "1 when the history answered, and has reached Kafka."),
    Measure(
        "history_lag_records", "gauge", "Records of run-events that it has not read, of the partition most behind."
    ),
    Measure("hints_read", "gauge", "1 when hints that are sent now come through to this process."),
)


class Distribution:
    """A histogram that a hot loop can afford: one bisection an observation, no lock, one event loop only."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Prometheus's cumulative form."""
        so_far, cumulative = 0, []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            cumulative.append((bound, float(so_far)))
        return cumulative


class Distributions(Collector):
    """All distributions of one measure, one for each label value."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._children: dict[tuple[str, ...], Distribution] = {}

    def labels(self, *values: str) -> Distribution:
        child = self._children.get(values)
        if child is None:
            child = self._children[values] = Distribution(self._measure.bounds)
        return child

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(
            f"fencepost_api_{self._measure.name}", self._measure.help, labels=self._measure.labels
        )
        for values, child in list(self._children.items()):
            family.add_metric(values, child.buckets(), child.total)
        yield family


class ApiMetrics:
    """The metrics of one API process, each an attribute under its own name."""

    requests: Counter
    request_ms: Distributions
    requests_shed: Counter
    requests_in_hand: Gauge
    commands_waiting: Gauge
    leases: Counter
    lease_batch_runs: Distribution
    leases_given_back: Counter
    wasted_claims: Counter
    lateness_ms: Distribution
    hint_lag_ms: Distribution
    hint_late_ms: Distribution
    hints: Counter
    undecodable_hints: Counter
    ready_polls: Counter
    polled_runs: Counter
    long_polls_waiting: Gauge
    ready_index_runs: Gauge
    permits_out: Gauge
    ready_index_dropped: Counter
    lease_quota_waits: Counter
    lease_quota_part: Gauge
    tenant_line_waits: Counter
    tenant_calls_in_line: Gauge
    flood_pace_calls: Gauge
    commit_batch_runs: Distributions
    ledger_up: Gauge
    unowned_partitions: Gauge
    unowned_s: Gauge
    silent_partitions: Gauge
    silent_s: Gauge
    outbox_rows: Gauge
    outbox_lag_s: Gauge
    standbys: Gauge
    synchronous_standbys: Gauge
    sync_standby_missing: Gauge
    standby_replay_lag_s: Gauge
    standby_replay_lag_bytes: Gauge
    oldest_snapshot_s: Gauge
    oldest_snapshot_transactions: Gauge
    clock_skew_s: Gauge
    history_up: Gauge
    history_lag_records: Gauge
    hints_read: Gauge

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        for measure in MEASURES:
            setattr(self, measure.name, self._build(measure))

    def _build(self, measure: Measure) -> object:
        if measure.kind == "distribution":
            distributions = Distributions(measure)
            self._registry.register(distributions)
            return distributions if measure.labels else distributions.labels()
        kind = Counter if measure.kind == "counter" else Gauge
        return kind(f"fencepost_api_{measure.name}", measure.help, measure.labels, registry=self._registry)

    def text(self) -> bytes:
        """Prometheus's text format."""
        return generate_latest(self._registry)
