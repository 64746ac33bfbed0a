"""The measurements, the same for every peer."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from bench.figures import Figures, spread
from bench.peers.site import PeerSite, Wrong
from bench.sizes import Sizes

Measure = Callable[[PeerSite, Sizes], Awaitable[Figures]]

_WARM_UP = 5
_AHEAD_SECONDS = 3


async def full_cycle(site: PeerSite, sizes: Sizes) -> Figures:
    """Jobs are submitted in batches while workers run them: a window in the middle."""
    await site.start_workers(site.peer.workers)
    submitter = site.start_submitter("ahead", max(2_000, round(sizes.backlog * site.peer.drain_share)))
    await _until(site, 1)
    await asyncio.sleep(sizes.warm_up)
    logged, used = await site.logged(), site.processor_seconds()
    started, before = time.perf_counter(), site.executed()
    await asyncio.sleep(sizes.seconds)
    took, executed = time.perf_counter() - started, site.executed() - before
    figures = _costs("full_cycle", used, site.processor_seconds(), executed)
    if logged is not None:
        figures["full_cycle_log_bytes_per_job"] = round(((await site.logged() or 0) - logged) / max(executed, 1))
    await site.verify(await site.finish(submitter))
    return {"full_cycle_jobs_per_s": round(executed / took), **figures}


async def drain(site: PeerSite, sizes: Sizes) -> Figures:
    """A queue that is full before the workers start: from a tenth of it to nine tenths."""
    count = max(500, round(sizes.drain * site.peer.drain_share))
    await site.submit("fill", count)
    await site.start_workers(site.peer.drain_workers)
    await _until(site, count // 10)
    used, started, first = site.processor_seconds(), time.perf_counter(), site.executed()
    await _until(site, count * 9 // 10)
    took, executed = time.perf_counter() - started, site.executed() - first
    figures = _costs("drain", used, site.processor_seconds(), executed)
    await site.verify(count)
    return {"drain_jobs_per_s": round(executed / took), **figures}


async def submit(site: PeerSite, sizes: Sizes) -> Figures:
    """Without workers: one by one, 64 at once, in batches of 1,000."""
    figures: Figures = {}
    submitted = 0
    for name, what, first in (("single", "single", 1), ("concurrent", "concurrent", 1), ("batch", "batches", 1_000)):
        server = site.server_seconds()
        done = await site.submit(what, float(sizes.submit_seconds))
        server = site.server_seconds() - server
        figures[f"submit_{name}_jobs_per_s"] = round(done["jobs"] / done["seconds"])
        figures[f"submit_{name}_processor_us_per_job"] = {
            "client": round(done["processor_seconds"] * 1e6 / done["jobs"], 1),
            "server": round(server * 1e6 / done["jobs"], 1),
        }
        submitted += first + round(done["jobs"])
    queued = await site.unfinished()
    if queued != submitted:
        raise Wrong(f"{submitted:,} submitted, {queued:,} queued")
    return figures


async def latency(site: PeerSite, sizes: Sizes) -> Figures:
    """One job at a time on an idle system; then thousands that are due at one instant."""
    await site.start_workers(site.peer.workers)
    samples = sizes.idle_samples + _WARM_UP
    await site.submit("idle", samples)
    await site.verify(samples)
    idle = sorted(site.stamps.read(), key=lambda stamp: stamp.due)
    site.stamps.clear()
    due = time.time_ns() // 1_000 + _AHEAD_SECONDS * 1_000_000
    await site.submit("herd", sizes.herd, due)
    if time.time_ns() // 1_000 > due:
        raise Wrong(f"submitting {sizes.herd:,} jobs took longer than {_AHEAD_SECONDS} s")
    await site.verify(samples + sizes.herd)
    herd = site.stamps.read()
    if any(stamp.started < stamp.due for stamp in herd):
        raise Wrong("jobs started before they were due")
    return {
        **spread("idle_latency", [stamp.late_ms for stamp in idle[_WARM_UP:]]),
        **spread("herd_lateness", [stamp.late_ms for stamp in herd]),
    }


MEASUREMENTS: dict[str, tuple[str, Measure]] = {
    "full": ("full cycle", full_cycle),
    "drain": ("drain of a full queue", drain),
    "submit": ("submitting", submit),
    "latency": ("latency", latency),
}


async def _until(site: PeerSite, executed: int, timeout: float = 120) -> None:
    give_up_at = time.monotonic() + timeout
    while (found := site.executed()) < executed:
        site.children.check()
        if time.monotonic() > give_up_at:
            raise Wrong(f"{found:,} of {executed:,} executions after {timeout:.0f} s")
        await asyncio.sleep(0.01)


def _costs(name: str, before: dict[str, float], after: dict[str, float], jobs: int) -> Figures:
    used = {kind: round((after[kind] - before[kind]) * 1e6 / max(jobs, 1), 1) for kind in after}
    return {f"{name}_processor_us_per_job": used}
