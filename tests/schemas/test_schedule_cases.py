"""Every case of tests/data/cases.jsonl about cron and zones, with its expected value."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from time import thread_time
from typing import Any

import pytest

from schemas.errors import InvalidSchedule, UnknownZone
from schemas.schedule import next_fire, parse_schedule, previous_fire, to_json
from tests.cases import spelled

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "cases.jsonl").read_text(encoding="utf-8").splitlines()
]
CREATED_AT = datetime(2024, 1, 1, tzinfo=UTC)
SLOW_S = 0.1


def cases(*areas: str) -> list[Any]:
    return [pytest.param(case, id=case["id"]) for case in CASES if case["area"] in areas]


def case(case_id: str) -> dict[str, Any]:
    return next(case for case in CASES if case["id"] == case_id)


def text(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize("case", cases("cron-dst", "cron-syntax"))
def test_cron_case_has_its_expected_outcome(case: dict[str, Any]) -> None:
    given, expected = case["input"], case["expected"]
    shape = set(given) - {"job_id"}, set(expected)
    if shape == ({"expr", "zone", "start", "direction", "count"}, {"fires_utc"}):
        assert fires(given) == expected["fires_utc"]
    elif shape == ({"expr", "zone"}, {"reject", "error_names", "at"}):
        assert_refused(given, expected["error_names"])
    else:
        pytest.fail(f"a case of a shape this test does not know: {shape}")


def fires(given: dict[str, Any]) -> list[str | None]:
    job_id = given.get("job_id", "case")
    schedule = parse_schedule({"cron": given["expr"], "zone": given["zone"]}, job_id=job_id)
    step = {"next": next_fire, "prev": previous_fire}[given["direction"]]
    found: list[str | None] = []
    cursor = datetime.fromisoformat(given["start"])
    began = thread_time()
    for _ in range(given["count"]):
        fire = step(schedule, cursor, job_id=job_id, created_at=CREATED_AT)
        assert fire is not None
        found.append(text(fire))
        cursor = fire
    assert thread_time() - began < SLOW_S
    return found


def assert_refused(given: dict[str, Any], names: str) -> None:
    began = thread_time()
    with pytest.raises(InvalidSchedule) as refusal:
        parse_schedule({"cron": expression(given["expr"]), "zone": given["zone"]}, job_id="case")
    assert thread_time() - began < SLOW_S
    assert refusal.value.field == "cron"
    # "day of month / month" asks for either; "… longer than the limit (e.g. 256)" for the gist.
    wanted = ["longer than 256"] if "256" in names else names.split(" / ")
    assert any(name.casefold() in refusal.value.message.casefold() for name in wanted)


def expression(described: str) -> str:
    """The expression of a case that says how to build it."""
    built = re.fullmatch(r"'(.*)' repeated (\d+) times, then '(.*)'", described)
    return built[1] * int(built[2]) + built[3] if built else described


@pytest.mark.parametrize(
    "name", [name for case_id in ("api-001", "api-002") for name in case(case_id)["input"]["zone"]]
)
def test_unknown_zone_is_refused_with_its_field(name: str) -> None:
    for zone in (name, spelled(name)):
        with pytest.raises(UnknownZone) as refusal:
            parse_schedule({"cron": "0 9 * * *", "zone": zone}, job_id=None)
        assert refusal.value.field == "zone"
        assert "unknown time zone" in refusal.value.message
        assert len(refusal.value.message) < 300


@pytest.mark.parametrize("name", case("api-003")["input"]["zone"])
def test_legacy_zone_name_is_accepted_from_the_bundled_tzdata(name: str) -> None:
    assert to_json(parse_schedule({"cron": "0 9 * * *", "zone": name}, job_id=None))["zone"] == name


def test_legacy_zone_names_have_their_own_meaning() -> None:
    def noon_in_july(name: str) -> str | None:
        schedule = parse_schedule({"cron": "0 12 * * *", "zone": name}, job_id=None)
        july = datetime(2024, 7, 1, tzinfo=UTC)
        return text(next_fire(schedule, july, job_id="case", created_at=CREATED_AT))

    assert noon_in_july("EST5EDT") == noon_in_july("America/New_York") == "2024-07-01T16:00:00Z"
    assert noon_in_july("EST") == "2024-07-01T17:00:00Z"


def test_one_off_local_times_follow_the_gap_and_fold_rule() -> None:
    given, expected = case("api-004")["input"], case("api-004")["expected"]
    found = [
        to_json(parse_schedule({"runAt": one["local"], "zone": one["zone"]}, job_id=None))["runAt"]
        for one in given["one_off"]
    ]
    assert found == expected["run_at_utc"]


@pytest.mark.parametrize("every", case("api-006")["input"]["interval_s"])
def test_interval_that_would_be_a_busy_loop_is_refused(every: float) -> None:
    with pytest.raises(InvalidSchedule) as refusal:
        parse_schedule({"everySeconds": every}, job_id=None)
    assert refusal.value.field == "everySeconds"


def test_fires_come_from_the_pinned_tzdata_and_not_from_the_host() -> None:
    given, expected = case("clk-005")["input"], case("clk-005")["expected"]
    schedule = parse_schedule({"cron": given["schedule"], "zone": given["zone"]}, job_id=None)
    fire = next_fire(schedule, datetime.fromisoformat(given["start"]), job_id="case", created_at=CREATED_AT)
    assert text(fire) == expected["node_2_value"]
