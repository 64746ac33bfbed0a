"""What metrics, logs and traces cost the full cycle: bare, with metrics and logs, with traces; in turns, on a
PostgreSQL of its own.

    python -m bench.metrics_cost [rounds]

As ``mainspring bench --quick --only full --store postgres``. Bare: nobody counts, only errors are logged. Metrics and
logs: every process counts, writes its log at ``info`` as JSON, and is scraped every 5 seconds, three times as often as
by what is in ``deploy/prometheus``. Traces: bare, with 1 % of the runs recorded and sent to a collector that takes
them.

On a machine that others use, too, a round may take half as much time again as the next, whatever is measured. A job
costs the server the same in all three: what our own processes take is also told in parts of that, which changes little.
"""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
_SCRAPED_EVERY = 5
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
    #: Microseconds of processor time a job: of our processes, and of the server.
    own: float
    server: float

    @property
    def used(self) -> float:
        return self.own + self.server


async def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    found: dict[str, list[Round]] = {what: [] for what in _SAID}
    async with place_of(POSTGRES, lambda words: None) as place:
        for number in range(rounds):
            # Whoever is first in a round may have it easier: in turns.
            turn = number % len(_SAID)
            for what in [*_SAID, *_SAID][turn : turn + len(_SAID)]:
                found[what].append(await full(place, what))
            told = ", ".join(
                f"{what} {each[-1].rate:,.0f} jobs/s and {each[-1].used:.1f} µs" for what, each in found.items()
            )
            print(f"round {number + 1}: {told} (load {os.getloadavg()[0]:.0f})", flush=True)
    bare = found.pop(BARE)
    fast, less = median(one.rate for one in bare), median(one.used for one in bare)
    usual, server = median(one.own / one.server for one in bare), median(one.server for one in bare)
    for what, more in found.items():
        slow, used = median(one.rate for one in more), median(one.used for one in more)
        each = median(b.used / w.used - 1 for w, b in zip(bare, more, strict=True))
        print(f"{what}: rate {fast:,.0f} → {slow:,.0f} jobs/s, {1 - slow / fast:.1%} lower (medians)")
        print(
            f"{what}: processor time {less:.1f} → {used:.1f} µs a job,"
            f" {used / less - 1:.1%} more (medians; {each:.1%} by rounds)"
        )
        part = median(one.own / one.server for one in more)
        extra = (part - usual) * server
        print(
            f"{what}: own time to the server's {usual:.3f} → {part:.3f}: {extra:.1f} of {less:.1f} µs a job,"
            f" {extra / less:.1%} more"
        )


async def full(place: Place, what: str) -> Round:
    scrapes, spans = [0], [0]
    scraping = asyncio.create_task(scrape(scrapes)) if what == METRICS else None
    with collector(spans) as address:
        said = {**_SAID[what], "MAINSPRING_TRACING_ENDPOINT": address}
        figures = await cycle(Bench(Setting(place, said), QUICK, lambda words: None))
    if scraping is not None:
        scraping.cancel()
        await asyncio.gather(scraping, return_exceptions=True)
        assert scrapes[0] > 0, "nobody could be scraped"
    assert bool(spans[0]) == (what == TRACES), "nothing was recorded, or something that nobody wanted"
    rate, used = figures["full_cycle_jobs_per_s"], figures["full_cycle_processor_us_per_job"]
    assert isinstance(rate, int | float)
    assert isinstance(used, dict)
    told = f"{scrapes[0]} scrapes, {spans[0]:,} bytes of spans"
    print(f"  {what}: {rate:,.0f} jobs/s; µs of processor time a job: {used}; {told}", flush=True)
    return Round(rate, sum(used.values()) - used["server"], used["server"])


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
    """Whoever listens, as Prometheus would."""
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
            await asyncio.sleep(_SCRAPED_EVERY)


if __name__ == "__main__":
    asyncio.run(main())
