"""Which time zone database counts: the newer one of the tzdata package and the system's."""

import zoneinfo
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
import tzdata  # type: ignore[import-untyped]

from mainspring.core.model.cluster.diagnosis import Finding, Level, Signs, diagnose
from mainspring.core.model.schedules.cron import ZoneDatabase, find_zone_database, load_zone
from mainspring.core.model.schedules.cron import zone as zones

CACHED = (find_zone_database, load_zone, zones._read_zone, zones._zone_names)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A system database in which Paris has the rules of Tokyo."""
    for name in ("Etc/UTC", "Europe/Paris", "Custom/Zone"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        source = "Etc/UTC" if name == "Etc/UTC" else "Asia/Tokyo"
        path.write_bytes((Path(tzdata.__file__).parent / "zoneinfo" / source).read_bytes())
    zoneinfo.reset_tzpath(to=[str(tmp_path)])
    zoneinfo.ZoneInfo.clear_cache()
    for cached in CACHED:
        cached.cache_clear()
    yield tmp_path
    zoneinfo.reset_tzpath()
    zoneinfo.ZoneInfo.clear_cache()
    for cached in CACHED:
        cached.cache_clear()


def paris_offset() -> int:
    offset = datetime(2026, 1, 1, tzinfo=load_zone("Europe/Paris")).utcoffset()
    assert offset is not None
    return offset.seconds // 3600


@pytest.mark.parametrize("file", ["tzdata.zi", "+VERSION"])
def test_an_older_system_database_is_not_used(system: Path, file: str) -> None:
    (system / file).write_text("# version 2001a\n" if file == "tzdata.zi" else "2001a\n")
    assert find_zone_database() == ZoneDatabase(tzdata.IANA_VERSION, "package")
    assert paris_offset() == 1


@pytest.mark.parametrize("file", ["tzdata.zi", "+VERSION"])
def test_a_newer_system_database_is_used(system: Path, file: str) -> None:
    (system / file).write_text("# version 2999a\n" if file == "tzdata.zi" else "2999a\n")
    assert find_zone_database() == ZoneDatabase("2999a", "system")
    assert paris_offset() == 9


def test_a_system_database_without_a_version_is_not_used(system: Path) -> None:
    assert find_zone_database().source == "package"
    assert paris_offset() == 1


def test_the_package_is_used_if_there_is_no_system_database(system: Path) -> None:
    zoneinfo.reset_tzpath(to=[])
    assert find_zone_database() == ZoneDatabase(tzdata.IANA_VERSION, "package")
    assert paris_offset() == 1


def test_the_system_database_is_used_without_the_package(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zones, "_read_package_version", lambda: None)
    assert str(find_zone_database()) == "of an unknown version (system)"
    assert paris_offset() == 9


def test_a_zone_that_only_the_system_has_is_still_loaded(system: Path) -> None:
    assert datetime(2026, 1, 1, tzinfo=load_zone("Custom/Zone")).utcoffset() is not None


def test_doctor_warns_of_schedulers_with_different_databases() -> None:
    same = finding(("a", "2026f"), ("b", "2026f"))
    assert same.level is Level.OK
    assert str(find_zone_database()) in same.says
    differ = finding(("a", "2026f"), ("b", "2025b"), ("c", "2026f"))
    assert differ.level is Level.WARNING
    assert "2025b: b; 2026f: a, c" in differ.says
    assert "tzdata" in differ.advice


def finding(*schedulers: tuple[str, str]) -> Finding:
    signs = Signs(
        now=0,
        schedulers=len(schedulers),
        workers=(),
        queued=(),
        expired=(),
        unstaged=0,
        oldest_unstaged=None,
        unfired=0,
        oldest_unfired=None,
        waiting=False,
        readers=(),
        dead_letters=0,
        pauses=(),
        tzdata=schedulers,
    )
    [found] = [one for one in diagnose(signs) if one.check == "time zones"]
    return found
