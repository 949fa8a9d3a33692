"""Zones: the same on every node, and a timeline that agrees with zoneinfo at every change."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
import tzdata  # type: ignore[import-untyped]

from schemas.zones import DAWN_S, FAR_S, TZDATA_VERSION, timeline, zone, zone_names
from tests.properties.cron_oracle import oracle_zone


@pytest.fixture
def lying_host(tmp_path: Path) -> Iterator[None]:
    """A host on which New York is the fixed zone UTC."""
    (tmp_path / "America").mkdir()
    honest = zone("UTC")
    source = Path(tzdata.__file__).parent / "zoneinfo" / "UTC"
    (tmp_path / "America" / "New_York").write_bytes(source.read_bytes())
    zoneinfo.reset_tzpath([tmp_path])
    zoneinfo.ZoneInfo.clear_cache()
    zone.cache_clear()
    timeline.cache_clear()
    yield
    zoneinfo.reset_tzpath()
    zoneinfo.ZoneInfo.clear_cache()
    assert honest.key == "UTC"


@pytest.mark.usefixtures("lying_host")
def test_zone_comes_from_the_package_even_where_the_host_has_another() -> None:
    july = datetime(2024, 7, 1, tzinfo=UTC)
    assert july.astimezone(zoneinfo.ZoneInfo("America/New_York")).hour == 0
    assert july.astimezone(zone("America/New_York")).hour == 20
    assert len(timeline("America/New_York").starts) > 100


def test_every_zone_of_the_allow_list_loads_and_keeps_its_name() -> None:
    assert len(zone_names()) > 590
    assert not zone_names() & {"Factory", "localtime", "posixrules"}
    assert all(zone(name).key == name for name in zone_names())


def test_version_is_that_of_the_package() -> None:
    assert TZDATA_VERSION == tzdata.IANA_VERSION


@pytest.mark.parametrize("initial", sorted({name[0] for name in zone_names()}))
def test_timeline_agrees_with_zoneinfo_around_every_change_and_between(initial: str) -> None:
    random = Random(initial)
    for name in sorted(name for name in zone_names() if name[0] == initial):
        line, info = timeline(name), oracle_zone(name)
        around = [start + d for start in line.starts if start != DAWN_S for d in (-1, 0)]
        anywhere = [random.randrange(line.reach) for _ in range(200)]
        for instant in around + anywhere:
            if instant >= 0:
                offset = datetime.fromtimestamp(instant, info).utcoffset()
                assert offset is not None
                assert offset.total_seconds() == line.offsets[line.stretch(instant)], (name, instant)


def test_timeline_reaches_as_far_as_asked_and_agrees_on_what_both_cover() -> None:
    near, far = timeline("Europe/Paris"), timeline("Europe/Paris", FAR_S)
    assert far.reach == FAR_S
    assert far.starts[: len(near.starts)] == near.starts
    assert len(far.starts) == len(near.starts) + 2 * (2500 - 2110)
