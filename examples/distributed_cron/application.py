"""Maintenance tasks. Every tick has a run in each data center."""

import gc
from collections.abc import Iterator
from pathlib import Path

from mainspring import Context, Mainspring, Overlap, provided

DATACENTERS = ("us-east", "us-west", "eu", "asia")


class Site:
    """The data center that a worker is in: here a folder with a cache and a file of metrics."""

    def __init__(self, datacenter: str) -> None:
        self.cache = Path("distributed_cron.sites", datacenter, "cache")
        self.metrics = self.cache.with_name("metrics")
        self.cache.mkdir(parents=True, exist_ok=True)


def clear_cache(site: Site = provided()) -> int:
    entries = list(site.cache.iterdir())
    for entry in entries:
        entry.unlink(missing_ok=True)
    return len(entries)


def export_metrics(context: Context, site: Site = provided()) -> None:
    (site.cache / context.run_id).touch()
    with site.metrics.open("a") as metrics:
        metrics.write(f"{context.scheduled_for.isoformat()}\n")


def collect_garbage() -> int:
    return gc.collect()


def maintenance(every_hour: str, every_five_minutes: str, every_day: str) -> Mainspring:
    """The same tasks at other times: as they are meant, or all within seconds."""
    app = Mainspring(name="maintenance")

    @app.resource
    def site() -> Iterator[Site]:
        # What the worker was started with as --datacenter.
        yield Site(app.settings().datacenter)

    # They are short and end by themselves: threads will do.
    task = app.task(executor="thread", queue="cron-jobs")
    app.cron(every_hour, datacenters=DATACENTERS, overlap=Overlap.SKIP)(task(clear_cache))
    # Each tick is a point of a curve: those that were missed are caught up with.
    app.cron(every_five_minutes, datacenters=DATACENTERS, catch_up="all")(task(export_metrics))
    app.cron(every_day, datacenters=DATACENTERS, overlap=Overlap.SKIP)(task(collect_garbage))
    return app


app = maintenance("0 0 * * * *", "0 */5 * * * *", "0 0 3 * * *")
rehearsal = maintenance("* * * * * *", "* * * * * *", "*/2 * * * * *")
