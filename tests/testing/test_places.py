"""Labels and data centers in a test: its only worker has all of them."""

from mainspring import Mainspring, prefer
from mainspring.testing import TestScheduler


async def test_runs_with_any_required_labels_and_data_centers_run() -> None:
    app = Mainspring()
    ran: list[str] = []

    @app.cron("0 0 6 * * *", datacenters=["us", "eu"])
    async def both() -> None:
        ran.append("both")

    @app.cron("0 0 6 * * *", datacenters="all")
    async def everywhere() -> None:
        ran.append("everywhere")

    @app.cron("0 0 6 * * *")
    @app.task(requires={"datacenter": prefer("us", "eu"), "gpu": "a100"})
    async def one() -> None:
        ran.append("one")

    async with TestScheduler(app, start="2026-01-01T00:00:00Z") as s:
        await s.advance("1 day")
        assert sorted(ran) == ["both", "both", "everywhere", "one"]
        assert [entry.target for entry in s.ledger("both")] == ["eu", "us"]
