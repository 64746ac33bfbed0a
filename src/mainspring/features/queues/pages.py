"""Pages of queues: their depth, their throughput, and what blocks their runs."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.errors import NotFound
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, Micros, isoformat
from mainspring.features.queues.operations.policies import PolicyOut, get_queue_policy, put_queue_policy
from mainspring.features.queues.operations.queues import (
    list_queues,
    pause_everything,
    pause_queue,
    resume_everything,
    resume_queue,
)
from mainspring.http.problems import RequestFieldError
from mainspring.http.schemas.queues import QueueOut
from mainspring.http.schemas.runs import HolderOut, RunOut
from mainspring.web.formatting import describe_stranded
from mainspring.web.live_lists import keep_order
from mainspring.web.page import ActionReply, Pages, Reply, Visit
from mainspring.web.stat_charts import build_ended_chart, build_line_chart

queues = Pages()

_MAX_RUNS = 8
#: How many blocked runs are read, and for how many limits the holders are shown.
_MAX_BLOCKED = 100
_MAX_EXPLAINED = 5
#: The durations of a pause that the form offers.
PAUSES: dict[str, Micros] = {"15 minutes": 15 * MINUTE, "an hour": HOUR, "4 hours": 4 * HOUR, "a day": DAY}


class Blockage(NamedTuple):
    """A limit or ordering key that blocks runs of a queue."""

    words: str
    waiting: int
    #: One of the blocked runs.
    run: RunOut
    #: The runs that hold the limit or key. Looked up only for the limits that block most runs.
    holders: Sequence[HolderOut] = ()
    until: str | None = None


@queues.page("GET", "/queues", permission=Permission.READ)
async def show_queues(visit: Visit[Any]) -> Reply:
    found, loads = await asyncio.gather(visit.ask(list_queues), visit.ask("autoscale"))
    means = {load.queue: load.mean_ms for load in loads.queues}
    items: list[QueueOut] = sorted(found.items, key=lambda queue: (-queue.queued, -queue.running, queue.name))
    return visit.show(
        "queues/list.html",
        pauses=list(PAUSES),
        describe_stranded=describe_stranded,
        queues=keep_order(visit, items, lambda queue: queue.name),
        means=means,
        everything_paused=found.everything_paused,
        queued=sum(queue.queued for queue in items),
        running=sum(queue.running for queue in items),
        rate=sum(queue.rate_per_s for queue in items),
        lag=max((queue.lag_ms for queue in items if queue.queued), default=0.0),
    )


@queues.page("POST", "/queues/pause", permission=Permission.ADMINISTER_ALL)
async def do_pause_everything(visit: Visit[Any]) -> Reply:
    await visit.ask(pause_everything, body=_read_pause(visit))
    return ActionReply(words="All queues paused. No more runs start.", to="queues", undo="queues/resume")


@queues.page("POST", "/queues/resume", permission=Permission.ADMINISTER_ALL)
async def do_resume_everything(visit: Visit[Any]) -> Reply:
    await visit.ask(resume_everything)
    return ActionReply(
        words="All queues resumed, except those that were paused individually.",
        to="queues",
        undo="queues/pause",
    )


@queues.page("GET", "/queues/{name}", permission=Permission.READ)
async def show_queue(visit: Visit[Any]) -> Reply:
    name = visit.path["name"]
    newest = {"queue": name, "limit": _MAX_RUNS}
    policy, found, stats, scale, workers, running, queued, blockages = await asyncio.gather(
        visit.ask(get_queue_policy, path=visit.path),
        visit.ask(list_queues),
        visit.ask("get_stats", query={"since": isoformat(visit.now - HOUR), "step": "1m", "queue": name}),
        visit.ask("autoscale", query={"queue": name}),
        visit.ask("list_workers"),
        visit.ask("list_runs", query={**newest, "status": "running,cancelling"}),
        visit.ask("list_runs", query={**newest, "status": "queued"}),
        _list_blockages(visit, name),
    )
    known = next((queue for queue in found.items if queue.name == name), None)
    empty = QueueOut(name=name, queued=0, running=0, workers=0, lag_ms=0.0, rate_per_s=0.0, paused=False)
    return visit.show(
        "queues/detail.html",
        pauses=list(PAUSES),
        queue=known or empty,
        describe_stranded=describe_stranded,
        known=known is not None,
        everything_paused=found.everything_paused,
        policy=policy,
        shares=_format_shares(policy),
        scale=scale.queues[0],
        workers=[worker for worker in workers.items if name in worker.queues],
        running=running.items,
        queued=queued.items,
        blockages=blockages,
        ended_chart=build_ended_chart(stats.points),
        ended=sum(point.succeeded + point.failed for point in stats.points),
        late_chart=build_line_chart(stats.points, "late", "--late-fill"),
    )


@queues.page("POST", "/queues/{name}/pause", permission=Permission.OPERATE)
async def do_pause(visit: Visit[Any]) -> Reply:
    await visit.ask(pause_queue, path=visit.path, body=_read_pause(visit))
    path = f"queues/{quote(visit.path['name'], safe='')}"
    return ActionReply(words="Queue paused. Active runs continue.", to=path, undo=f"{path}/resume")


@queues.page("POST", "/queues/{name}/resume", permission=Permission.OPERATE)
async def do_resume(visit: Visit[Any]) -> Reply:
    await visit.ask(resume_queue, path=visit.path)
    path = f"queues/{quote(visit.path['name'], safe='')}"
    return ActionReply(words="Queue resumed.", to=path, undo=f"{path}/pause")


@queues.page("POST", "/queues/{name}/policy", permission=Permission.ADMINISTER_ALL)
async def do_put_policy(visit: Visit[Any]) -> Reply:
    form = visit.form
    concurrency = form.get("concurrency", "").strip()
    if concurrency and not concurrency.isdecimal():
        raise RequestFieldError("concurrency", f"{concurrency!r:.40} is not a whole number", "for example 10")
    body: dict[str, Any] = {
        "concurrency": int(concurrency) if concurrency else None,
        "retries": form.get("retries", "").strip() or None,
        "fair": form.get("fair") == "on",
        "shares": _parse_shares(form.get("shares", "")),
        "why": form.get("why", "").strip(),
    }
    await visit.ask(put_queue_policy, path=visit.path, body=body)
    return ActionReply(words="Policy saved.", to=f"queues/{quote(visit.path['name'], safe='')}")


async def _list_blockages(visit: Visit[Any], queue: str) -> list[Blockage]:
    """Return what blocks runs of a queue, most blocked runs first."""
    page = await visit.ask("list_runs", query={"queue": queue, "status": "blocked", "limit": _MAX_BLOCKED})
    by_words: dict[str, list[RunOut]] = {}
    for run in page.items:
        by_words.setdefault(run.reason, []).append(run)
    largest = sorted(by_words.items(), key=lambda pair: -len(pair[1]))
    explained = await asyncio.gather(*[_explain(visit, words, runs) for words, runs in largest[:_MAX_EXPLAINED]])
    return [*explained, *[Blockage(words, len(runs), runs[-1]) for words, runs in largest[_MAX_EXPLAINED:]]]


async def _explain(visit: Visit[Any], words: str, runs: Sequence[RunOut]) -> Blockage:
    # Explain the oldest run: the first one to come is the first to go.
    blockage = Blockage(words, len(runs), runs[-1])
    try:
        found = await visit.ask("explain_run", path={"id": blockage.run.run_id})
    except NotFound:
        return blockage
    if not found.because:
        return blockage
    first = found.because[0]
    return blockage._replace(holders=[one for one in first.holders if one.kind == "run"], until=first.until)


def _read_pause(visit: Visit[Any]) -> dict[str, str]:
    body = {"why": visit.form.get("why", "").strip()}
    if length := PAUSES.get(visit.form.get("for", "")):
        body["until"] = isoformat(visit.now + length)
    return body


def _parse_shares(text: str) -> dict[str, int]:
    """Parse shares such as ``acme=3, globex=2``."""
    shares: dict[str, int] = {}
    for word in text.replace("\n", ",").split(","):
        tenant, equals, share = word.strip().partition("=")
        if not tenant and not equals:
            continue
        if not share.strip().isdecimal():
            raise RequestFieldError(
                "shares", f"{word.strip()!r:.40} is not a tenant and its share", "for example acme=3"
            )
        shares[tenant.strip()] = int(share)
    return shares


def _format_shares(policy: PolicyOut) -> str:
    return ", ".join(f"{tenant}={share}" for tenant, share in sorted(policy.shares.items()))
