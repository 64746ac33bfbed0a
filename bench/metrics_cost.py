"""What metrics and logs cost the full cycle: with and without, in turns, on a PostgreSQL of its own.

    python -m bench.metrics_cost [rounds]

As ``mainspring bench --quick --only full --store postgres``. With: every process counts, writes its log at ``info`` as
JSON, and is scraped every second. Without: nobody counts, and only errors are logged.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from statistics import median
from typing import NamedTuple

import httpx2

from mainspring.bench.full_cycle import cycle
from mainspring.bench.measurement import Bench
from mainspring.bench.run import POSTGRES, place_of
from mainspring.bench.site import Place, Site
from mainspring.bench.sizes import QUICK

#: Where nobody else has a reason to listen.
_PORTS = range(27_170, 27_200)
_WITH = {
    "MAINSPRING_METRICS_ENABLED": "true",
    "MAINSPRING_METRICS_FIRST_PORT": str(_PORTS.start),
    "MAINSPRING_METRICS_LAST_PORT": str(_PORTS.stop - 1),
    "MAINSPRING_LOG_LEVEL": "info",
    "MAINSPRING_LOG_FORMAT": "json",
}
_WITHOUT = {"MAINSPRING_METRICS_ENABLED": "false", "MAINSPRING_LOG_LEVEL": "error", "MAINSPRING_LOG_FORMAT": "json"}


class Setting:
    """A place whose processes are told something more."""

    def __init__(self, place: Place, said: Mapping[str, str]) -> None:
        self.kind, self.facts, self.directory = place.kind, place.facts, place.directory
        self._place, self._said = place, said

    @asynccontextmanager
    async def site(self, name: str) -> AsyncIterator[Site]:
        async with self._place.site(name) as site:
            site.environment = {**site.environment, **self._said}  # type: ignore[misc]
            yield site


class Round(NamedTuple):
    #: Jobs a second.
    rate: float
    #: Microseconds of processor time a job, of all processes and the server. On a machine that others use, too, this is
    #: the steadier figure.
    used: float


async def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    without: list[Round] = []
    beside: list[Round] = []
    async with place_of(POSTGRES, lambda words: None) as place:
        for number in range(rounds):
            # Whoever is first in a round may have it easier: in turns.
            for on in (False, True) if number % 2 == 0 else (True, False):
                (beside if on else without).append(await full(place, on=on))
            less, more = without[-1], beside[-1]
            told = f"without {less.rate:,.0f} jobs/s and {less.used:.1f} µs, with {more.rate:,.0f} and {more.used:.1f}"
            print(f"round {number + 1}: {told} (load {os.getloadavg()[0]:.0f})", flush=True)
    slow, fast = median(one.rate for one in beside), median(one.rate for one in without)
    print(f"rate: {fast:,.0f} → {slow:,.0f} jobs/s, {1 - slow / fast:.1%} lower (medians)")
    more_used, less_used = median(one.used for one in beside), median(one.used for one in without)
    each = median(b.used / w.used - 1 for w, b in zip(without, beside, strict=True))
    print(
        f"processor time: {less_used:.1f} → {more_used:.1f} µs a job,"
        f" {more_used / less_used - 1:.1%} more (medians; {each:.1%} by rounds)"
    )


async def full(place: Place, *, on: bool) -> Round:
    scrapes = [0]
    scraping = asyncio.create_task(scrape(scrapes)) if on else None
    figures = await cycle(Bench(Setting(place, _WITH if on else _WITHOUT), QUICK, lambda words: None))
    if scraping is not None:
        scraping.cancel()
        await asyncio.gather(scraping, return_exceptions=True)
        assert scrapes[0] > 0, "nobody could be scraped"
    rate, used = figures["full_cycle_jobs_per_s"], figures["full_cycle_processor_us_per_job"]
    assert isinstance(rate, int | float)
    assert isinstance(used, dict)
    print(f"  {'with' if on else 'without'}: µs of processor time a job: {used}; {scrapes[0]} scrapes", flush=True)
    return Round(rate, sum(used.values()))


async def scrape(scrapes: list[int]) -> None:
    """Whoever listens, every second, as Prometheus would."""
    async with httpx2.AsyncClient(trust_env=False, timeout=5) as client:
        while True:
            for port in _PORTS:
                try:
                    (await client.get(f"http://127.0.0.1:{port}/metrics")).raise_for_status()
                except httpx2.ConnectError:
                    # They take the first free ones: nobody is beyond.
                    break
                except httpx2.HTTPError:
                    continue
                scrapes[0] += 1
            await asyncio.sleep(1)


if __name__ == "__main__":
    asyncio.run(main())
