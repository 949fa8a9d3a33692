"""The report tells what was done and what came of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.chaos.checker import Violation
from tests.chaos.fault_plan import PlannedFault
from tests.chaos.history import TopicEvent
from tests.chaos.job_rules import Fault
from tests.chaos.proxied_kafka import Listener, with_listeners
from tests.chaos.report import Lateness, Outcome, lateness

DUE = datetime(2026, 3, 1, 9, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return DUE + timedelta(seconds=seconds)


def lease(run: str, version: int, due_s: float, late_s: float) -> TopicEvent:
    return TopicEvent(f"{run}{version}", "run_leased", at(due_s + late_s), "job", run, version, due_at=at(due_s))


def outcome(violations: list[Violation], duplicates: int) -> Outcome:
    return Outcome(
        command="make chaos SEED=7 MINUTES=3",
        commit="abc",
        began=DUE,
        options={"seed": 7},
        planned=[PlannedFault(8, "kill", ("api",), 1), PlannedFault(20, "skew_clock", ("relay",), 9, -12.5)],
        timeline=[(8.0, "kill: api"), (9.0, "over")],
        counts={"runs": 20_000},
        lateness={"after the last": Lateness(3, 0.01, 0.5, 1.0)},
        duplicates=duplicates,
        completed=20_000,
        violations=violations,
    )


def test_a_run_is_late_by_its_first_lease_and_belongs_to_what_was_broken_when_it_was_due() -> None:
    events = [
        lease("a", 2, 0, 1),
        lease("a", 4, 50, 9),
        lease("b", 2, 25, 3),
        lease("c", 2, 40, 2),
        lease("d", 2, 60, 4),
    ]
    found = lateness(events, [Fault(at(20), at(24))], whole_since=at(55))
    assert [late.runs for late in found.values()] == [1, 2, 1]
    assert [late.worst for late in found.values()] == [3, 2, 4]


def test_a_report_names_its_seed_its_faults_and_its_verdict() -> None:
    text = outcome([], duplicates=2).markdown()
    for said in ("make chaos SEED=7", "No violation", "within the promised 0.01 %", "| runs | 20000 |", "kill: api"):
        assert said in text
    assert "## Violations" not in text


def test_violations_and_too_many_duplicates_are_said_first() -> None:
    text = outcome([Violation("nothing_is_lost", "run", "gone")], duplicates=30).markdown()
    assert text.index("1 violations") < text.index("beyond the promised") < text.index("## Figures")
    assert "`nothing_is_lost`: run: gone" in text


def test_each_client_s_listener_tells_the_address_of_its_link() -> None:
    settings = "listeners=A://x:1\nadvertised.listeners=A://x:1\nlistener.security.protocol.map=A:PLAINTEXT\nother=1\n"
    told = with_listeners(settings, {"api-1": Listener(5, 6)}).splitlines()
    assert told == [
        "listeners=A://x:1,API_1://127.0.0.1:5",
        "advertised.listeners=A://x:1,API_1://127.0.0.1:6",
        "listener.security.protocol.map=A:PLAINTEXT,API_1:PLAINTEXT",
        "other=1",
    ]
