"""The alert rules: each is on a metric that is there and has its runbook; what must be seen has its rules."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

import streams.metrics
from api.metrics import MEASURES
from tests.docs.papers import ROOT, anchors

RULES = ROOT / "docs" / "alerts.yaml"
MUST_BE_SEEN = {
    "unowned partition": {"FencepostPartitionUnowned", "FencepostOwnerSilent"},
    "stalled consumer": {
        "FencepostCommandsStalled",
        "FencepostEventsStalled",
        "FencepostPartitionHalted",
        "FencepostHistoryStalled",
    },
    "overload": {"FencepostShedding"},
    "lag of relay and history": {"FencepostRelayLag", "FencepostHistoryLag", "FencepostHistoryDown"},
    "standby lag": {"FencepostStandbyLag", "FencepostStandbyMissing"},
    "clock skew": {"FencepostClockSkew", "FencepostShardClocksApart"},
    "gate": {"FencepostGateBehind", "FencepostGateRejecting"},
    "old snapshots": {"FencepostOldSnapshot"},
}

Rule = dict[str, Any]


def rules() -> list[Rule]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def metrics() -> dict[str, tuple[str, ...]]:
    """Every metric that a role has, with its labels; instance is Prometheus's own."""
    found = {f"fencepost_api_{each.name}{'_total' if each.kind == 'counter' else ''}": each.labels for each in MEASURES}
    for value in vars(streams.metrics).values():
        if hasattr(value, "collect") and not isinstance(value, type):
            labels = getattr(
                value, "_labelnames", ("partition",)
            )  # of each partition, if it is none of Prometheus's own
            for family in value.collect():
                found[family.name + ("_total" if family.type == "counter" else "")] = labels
    return found


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_a_rule_is_on_metrics_that_are_there_and_on_labels_that_they_have(rule: Rule) -> None:
    named = re.findall(r"fencepost_\w+", rule["expr"])
    known = metrics()
    assert named
    assert set(named) <= set(known)
    labels = {label for name in named for label in known[name]} | {"instance"}
    assert set(re.findall(r"by \((\w+)\)", rule["expr"])) <= labels
    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_a_rule_says_how_bad_it_is_and_what_to_do(rule: Rule) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["for"]
    paper, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert anchor == rule["alert"].lower()
    assert anchor in anchors(paper)


def test_every_condition_that_must_be_seen_has_its_rules_and_no_name_comes_twice() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    assert set().union(*MUST_BE_SEEN.values()) <= set(names)


def test_prometheus_itself_understands_them() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
