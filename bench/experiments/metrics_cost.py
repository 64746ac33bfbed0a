"""What metrics, logs and traces cost the full cycle: with and without, side by side in the same seconds.

    python -m bench.experiments.metrics_cost [rounds]

Two whole systems at once, each on a PostgreSQL of its own: one bare, one with metrics and logs, or with traces. On a
machine that others use, too, a minute may be a third slower than the one before: beside each other both have it alike.
Bare: no process counts, only errors are logged. Metrics and logs: every process counts, logs at ``info`` as JSON, and
is scraped every 5 seconds, three times as often as by what is in ``deploy/prometheus``. Traces: bare, with 1 % of
the runs recorded and sent to a collector that takes them.
"""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import mean, stdev
from typing import NamedTuple

import httpx2
import msgspec

from bench.engine.full_cycle import cycle
from bench.measurement import Bench
from bench.run import POSTGRES, make_factory
from bench.sites.site import Site, SiteFactory
from bench.sizes import QUICK

#: Ports that other programs rarely use.
_PORTS = range(27_170, 27_200)
_SCRAPED_EVERY = 5
_SIZES = msgspec.structs.replace(QUICK, seconds=30)
BARE, METRICS, TRACES = "bare", "metrics and logs", "traces"
_BARE = {"MAINSPRING_METRICS_ENABLED": "false", "MAINSPRING_LOG_LEVEL": "error", "MAINSPRING_LOG_FORMAT": "json"}
_SAID = {
    BARE: _BARE,
    METRICS: {
        "MAINSPRING_METRICS_ENABLED": "true",
        "MAINSPRING_METRICS_FIRST_PORT": str(_PORTS.start),
        "MAINSPRING_METRICS_LAST_PORT": str(_PORTS.stop - 1),
        "MAINSPRING_LOG_LEVEL": "info",
        "MAINSPRING_LOG_FORMAT": "json",
    },
    TRACES: {**_BARE, "MAINSPRING_TRACING_ENABLED": "true", "MAINSPRING_TRACING_RATIO": "0.01"},
}


class Setting:
    """A place whose processes get additional settings."""

    def __init__(self, place: SiteFactory, said: Mapping[str, str]) -> None:
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
    #: Microseconds of processor time a job, of our processes and of the server.
    used: float


async def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    found: dict[str, list[tuple[Round, Round]]] = {METRICS: [], TRACES: []}
    async with make_factory(POSTGRES, lambda words: None) as one, make_factory(POSTGRES, lambda words: None) as other:
        for number in range(rounds):
            # Neither of the places is always the bare one.
            bare, more = (one, other) if number % 2 else (other, one)
            for what, pairs in found.items():
                pairs.append(await beside(bare, more, what))
                without, with_it = pairs[-1]
                print(
                    f"round {number + 1}, {what}: {without.rate:,.0f} and {with_it.rate:,.0f} jobs/s,"
                    f" {without.used:.1f} and {with_it.used:.1f} µs of processor time a job",
                    flush=True,
                )
    for what, pairs in found.items():
        print(f"{what}: jobs/s {compared([(without.rate, with_it.rate) for without, with_it in pairs])}")
        print(f"{what}: processor time a job {compared([(without.used, with_it.used) for without, with_it in pairs])}")


def compared(pairs: list[tuple[float, float]]) -> str:
    changes = [with_it / without - 1 for without, with_it in pairs]
    error = f" ± {stdev(changes) / len(changes) ** 0.5:.1%}" if len(changes) > 1 else ""
    before, after = (mean(pair[side] for pair in pairs) for side in (0, 1))
    return f"{before:,.1f} → {after:,.1f}, {mean(changes):+.1%}{error}"


async def beside(bare: SiteFactory, more: SiteFactory, what: str) -> tuple[Round, Round]:
    scrapes, spans = [0], [0]
    scraping = asyncio.create_task(scrape(scrapes)) if what == METRICS else None
    with collector(spans) as address:
        without, with_it = await asyncio.gather(full(bare, BARE, address), full(more, what, address))
    if scraping is not None:
        scraping.cancel()
        await asyncio.gather(scraping, return_exceptions=True)
        assert scrapes[0] > 0, "nobody could be scraped"
    assert bool(spans[0]) == (what == TRACES), "nothing was recorded, or something that nobody wanted"
    return without, with_it


async def full(place: SiteFactory, what: str, address: str) -> Round:
    said = {**_SAID[what], "MAINSPRING_TRACING_ENDPOINT": address}
    figures = await cycle(Bench(Setting(place, said), _SIZES, lambda words: None))
    rate, used = figures["full_cycle_jobs_per_s"], figures["full_cycle_processor_us_per_job"]
    assert isinstance(rate, int | float)
    assert isinstance(used, dict)
    return Round(rate, sum(used.values()))


@contextmanager
def collector(received: list[int]) -> Iterator[str]:
    """Takes what comes, and counts the bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received[0] += len(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *said: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


async def scrape(scrapes: list[int]) -> None:
    """Find the listening processes, as Prometheus would."""
    async with httpx2.AsyncClient(trust_env=False, timeout=5) as client:
        while True:
            for port in _PORTS:
                try:
                    (await client.get(f"http://127.0.0.1:{port}/metrics")).raise_for_status()
                except httpx2.ConnectError:
                    # They take the first free ones, so none listens beyond.
                    break
                except httpx2.HTTPError:
                    continue
                scrapes[0] += 1
            await asyncio.sleep(_SCRAPED_EVERY)


if __name__ == "__main__":
    asyncio.run(main())
