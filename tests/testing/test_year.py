"""A year of hourly and daily jobs with DST changes, compared with a scan of every half hour."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from mainspring import Mainspring
from mainspring.core.model.base.instant import to_datetime
from mainspring.core.model.schedules.cron import DstFold, DstGap
from mainspring.testing import TestScheduler

#: The last year with DST in São Paulo, where clocks change at midnight: 00:30 is skipped once, 23:30 is repeated.
START = datetime(2018, 1, 1, tzinfo=UTC)
END = datetime(2019, 1, 1, tzinfo=UTC)
ZONES = ("Europe/Paris", "America/Sao_Paulo")
DAILY = {"Europe/Paris": (2,), "America/Sao_Paulo": (0, 23)}


class Scan:
    """Every half hour of the year with the local time of a zone, without any schedule arithmetic."""

    def __init__(self, zone: str) -> None:
        moments = [START + timedelta(minutes=30 * half) for half in range(-48, 367 * 48)]
        walls = [moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0) for moment in moments]
        self.moments = list(zip(moments, walls, strict=True))
        self.shown = defaultdict[datetime, list[datetime]](list)
        for moment, wall in self.moments:
            self.shown[wall].append(moment)

    def hourly(self) -> list[datetime]:
        return within(moment for moment, wall in self.moments if wall.minute == 0)

    def daily(self, hour: int, gap: DstGap, fold: DstFold) -> list[datetime]:
        fires = []
        day = datetime(2017, 12, 31, hour, 30)  # noqa: DTZ001
        while day < datetime(2019, 1, 2):  # noqa: DTZ001
            moments = self.shown.get(day, [])
            if moments:
                fires += moments if fold is DstFold.TWICE else moments[:1]
            elif gap is DstGap.RUN_AFTER:
                fires += [after for (_, before), (after, wall) in pairwise(self.moments) if before < day < wall]
            day += timedelta(days=1)
        return within(fires)


def within(moments: Iterable[datetime]) -> list[datetime]:
    return sorted(moment for moment in moments if START < moment <= END)


@pytest.mark.slow
def test_a_year_of_cron_ticks_matches_a_scan_of_every_half_hour() -> None:
    app = Mainspring()
    expected: dict[str, list[datetime]] = {}
    for zone in ZONES:
        scan = Scan(zone)

        @app.cron("0 * * * *", timezone=zone, name=f"{zone} hourly")
        @app.task(name=f"{zone} hourly")
        async def hourly() -> None: ...

        expected[f"{zone} hourly"] = scan.hourly()

        @app.task(name=f"{zone} daily")
        async def daily() -> None: ...

        for hour in DAILY[zone]:
            for gap in DstGap:
                for fold in DstFold:
                    name = f"{zone} {hour}:30 {gap} {fold}"
                    app.cron(f"30 {hour} * * *", timezone=zone, name=name, dst_gap=gap, dst_fold=fold)(daily)
                    expected[name] = scan.daily(hour, gap, fold)
    with TestScheduler(app, start=START) as s:
        s.advance_to(END)
        fired = {name: [to_datetime(entry.scheduled_at) for entry in s.ledger(name)] for name in expected}
        started = {name: [view.started_at for view in s.runs(f"{name} hourly")] for name in ZONES}
        assert s.runs().succeeded == len(s.runs()) == sum(map(len, expected.values()))
    assert fired == expected
    for zone in ZONES:
        assert [to_datetime(at or 0) for at in started[zone]] == expected[f"{zone} hourly"]
    # The rules differ on the days of the DST changes.
    counts = {name: len(times) - 365 for name, times in expected.items() if "hourly" not in name}
    assert counts["Europe/Paris 2:30 skip once"] == -1
    assert counts["Europe/Paris 2:30 run_after twice"] == 1
    assert counts["America/Sao_Paulo 0:30 skip once"] == -1
    assert counts["America/Sao_Paulo 23:30 skip twice"] == 1
