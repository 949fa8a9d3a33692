"""Every metric of the stream roles: name, unit, meaning, in one list."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class PartitionGauge(Collector):
    """A gauge of every partition that is owned here, which its owner is asked for when somebody reads it.

    To set it now and then would be much of what an idle process does; and one that is not owned any more has none.
    """

    def __init__(self, name: str, meaning: str) -> None:
        self._name, self._meaning = name, meaning
        self._asked: dict[int, Callable[[], float]] = {}
        REGISTRY.register(self)

    def tell(self, partition: int, ask: Callable[[], float]) -> None:
        """From now on `ask` tells the partition's."""
        self._asked[partition] = ask

    def drop(self, partition: int, ask: Callable[[], float]) -> None:
        """`ask` tells nothing any more; a no-op when another one tells the partition's by now."""
        if self._asked.get(partition) == ask:
            del self._asked[partition]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._name, self._meaning, labels=["partition"])
        for partition, ask in sorted(self._asked.items()):
            family.add_metric([str(partition)], ask())
        yield family


_LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

COMMANDS_APPLIED = Counter("fencepost_commands_applied_total", "Commands that took effect or were already in effect")
COMMANDS_REJECTED = Counter("fencepost_commands_rejected_total", "Commands sent to the rejected topic", ["code"])
COMMANDS_READ_AGAIN = Counter("fencepost_commands_read_again_total", "Times that a partition's commands did not come")
COMMANDS_STALLED_SECONDS = Gauge(
    "fencepost_commands_stalled_seconds", "For how long a partition's commands have not come, of the one most behind"
)
GATE_RECORDS = Counter("fencepost_gate_records_total", "Records of a tenant's own topic that were judged", ["tenant"])
GATE_REJECTED = Counter("fencepost_gate_rejected_total", "Those of them that were not let through", ["tenant"])
GATE_LAG_RECORDS = Gauge(
    "fencepost_gate_lag_records",
    "Records of a tenant's own topic that are not through, of this gate's share",
    ["tenant"],
)
COMMANDS_FORWARDED = Counter("fencepost_commands_forwarded_total", "Commands that came to a partition not their own")
APPLY_SECONDS = Histogram("fencepost_apply_seconds", "One fenced transaction of commands", buckets=_LATENCY_BUCKETS)
HINTS_SENT = Counter("fencepost_hints_sent_total", "Run ids told to the API")
HINTS_DROPPED = Counter("fencepost_hints_dropped_total", "Run ids that Kafka did not take; the sweeps find them")
HINT_LATENESS_SECONDS = Histogram(
    "fencepost_hint_lateness_seconds", "From a run's due time to its hint", buckets=_LATENCY_BUCKETS
)
OCCURRENCES_DECIDED = Counter("fencepost_occurrences_decided_total", "Occurrences that became pending runs")
OCCURRENCES_SKIPPED = Counter(
    "fencepost_occurrences_skipped_total", "Occurrences that were caught up with by skipping them", ["reason"]
)
DECIDED_THROUGH_SECONDS = PartitionGauge(
    "fencepost_decided_through_seconds", "Unix time up to which every occurrence has its decision"
)
UNDECIDED_LAG_SECONDS = PartitionGauge(
    "fencepost_undecided_lag_seconds", "How far behind the ledger's time the decisions are"
)
JOBS_BEHIND = PartitionGauge("fencepost_jobs_behind", "Jobs that are being caught up with")
JOBS_UNDECIDABLE = PartitionGauge(
    "fencepost_jobs_undecidable", "Jobs whose next occurrence is due but whose schedule cannot be read"
)
RUNS_BLOCKED = PartitionGauge("fencepost_runs_blocked", "Runs that wait for another one of their job")
LEASES_EXPIRED = Counter("fencepost_leases_expired_total", "Attempts that ended by expiry", ["outcome"])
RUNS_REHINTED = Counter("fencepost_runs_rehinted_total", "Run ids hinted again because nobody had leased them")
PARTITIONS_OWNED = Gauge("fencepost_partitions_owned", "Partitions this process owns")
EPOCHS_LOST = Counter("fencepost_epochs_lost_total", "Partitions dropped because somebody else had taken them over")
PARTITION_HALTED = Gauge(
    "fencepost_partition_halted", "1 while the partition stands still because Kafka takes no rejections", ["partition"]
)
TIMERS_LOADED = Gauge("fencepost_timers_loaded", "Timers in the wheels")
EVENTS_FOLDED = Counter("fencepost_events_folded_total", "Run events folded into timing state")
EVENTS_STALLED_SECONDS = Gauge(
    "fencepost_events_stalled_seconds",
    "For how long run events are not known to come, nor that there are none, of the partition most behind",
)
OUTBOX_EVENTS_PUBLISHED = Counter("fencepost_outbox_events_published_total", "Events Kafka acknowledged", ["shard"])
OUTBOX_LAG_SECONDS = Gauge("fencepost_outbox_lag_seconds", "How long the oldest event has been waiting", ["shard"])
OUTBOX_ROWS = Gauge("fencepost_outbox_rows", "Outbox rows that wait to be published", ["shard"])
JOBS_FORGOTTEN = Counter("fencepost_jobs_forgotten_total", "Jobs that were over and have left the ledger")
HISTORY_EVENTS = Counter("fencepost_history_events_total", "Run events that the history took in")
HISTORY_REPEATED_EVENTS = Counter("fencepost_history_repeated_events_total", "Run events the history had already")
HISTORY_RECORDS_SKIPPED = Counter("fencepost_history_skipped_records_total", "Records that are no run events")
HISTORY_LAG_RECORDS = Gauge("fencepost_history_lag_records", "Records of run-events not read yet", ["partition"])
HISTORY_SILENT_SECONDS = Gauge("fencepost_history_silent_seconds", "Since the projector last looked at run-events")
CLOCK_SKEW_SECONDS = Gauge(
    "fencepost_clock_skew_seconds", "How far this process's clock is ahead of the shard's, for certain", ["shard"]
)
