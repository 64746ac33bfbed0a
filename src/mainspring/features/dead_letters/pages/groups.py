"""Dashboard pages of dead-letter groups: list, replay and discard."""

import asyncio
from typing import Any
from urllib.parse import quote

import msgspec

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.instant import HOUR, isoformat
from mainspring.features.dead_letters.operations.groups import bring_back, discard, list_dead, list_groups, replay
from mainspring.features.dead_letters.operations.replays import Replays, list_replays, start_replay
from mainspring.http.problems import AsWritten
from mainspring.http.schemas.dead_letters import GroupOut, Groups
from mainspring.web.charts import chart
from mainspring.web.formatting import plural
from mainspring.web.live_lists import keep_order, read_steadily
from mainspring.web.page import Done, Pages, Reply, Visit, json_field

dead_letters = Pages()

_GROUPS = 50
_RUNS = 20
_REPLAYS = 5
#: Suggested number of canaries.
_CANARIES = 5


class Chosen(msgspec.Struct, frozen=True):
    """Selects dead letters; without a field, all of them."""

    fingerprint: str = ""
    task: str = ""
    queue: str = ""

    def given(self) -> dict[str, object]:
        """Return the selection as query parameters."""
        return msgspec.structs.asdict(self)

    @property
    def body(self) -> dict[str, object]:
        """Return the selection as a request body."""
        said = {name: value for name, value in self.given().items() if value}
        return said or {"everything": True}


class SomeQuery(msgspec.Struct, frozen=True):
    ids: str = ""


class GroupQuery(msgspec.Struct, frozen=True):
    task: str = ""
    cursor: str = ""


@dead_letters.page("GET", "/dead-letters", permission=Permission.READ, query=Chosen)
async def show_groups(visit: Visit[Chosen]) -> Reply:
    given = visit.query.given()
    groups, replays = await asyncio.gather(
        visit.ask(list_groups, query={**given, "limit": _GROUPS}),
        visit.ask(list_replays, query={"limit": _REPLAYS}),
    )
    return visit.show(
        "dead_letters/list.html",
        groups=keep_order(visit, groups.items, lambda group: f"{group.fingerprint}-{group.task}"),
        count=_count(groups),
        more=len(groups.items) == _GROUPS,
        replays=_by_progress(replays),
        given=given,
        filtered=any(given.values()),
    )


@dead_letters.page("GET", "/dead-letters/replay", permission=Permission.OPERATE, query=Chosen)
async def ask_replay(visit: Visit[Chosen]) -> Reply:
    """Preview a replay. A stored replay handles all matching dead letters, even more than are counted here."""
    groups, would = await asyncio.gather(
        _reached_groups(visit), visit.ask(replay, body={**visit.query.body, "dryRun": True})
    )
    return visit.show(
        "dead_letters/replay_form.html",
        groups=groups,
        all_shown=len(groups) < _GROUPS,
        which=("more than " if would.more else "") + plural(would.count, "dead letter"),
        count=would.count,
        given=visit.query.given(),
        canaries=min(_CANARIES, max(would.count - 1, 0)),
    )


@dead_letters.page("POST", "/dead-letters/replay", permission=Permission.OPERATE, query=Chosen)
async def do_replay(visit: Visit[Chosen]) -> Reply:
    body: dict[str, Any] = {**visit.query.body, "canaries": _number(visit, "canaries") or 0}
    if (pace := _number(visit, "perSecond")) is not None:
        body["perSecond"] = pace
    if (patch := json_field(visit.form, "payloadPatch")) is not None:
        body["payloadPatch"] = patch
    made = await visit.ask(start_replay, body=body)
    return Done(words="The replay has begun.", to=f"dead-letters/replays/{made.replay_id}", leave=True)


@dead_letters.page("GET", "/dead-letters/discard", permission=Permission.OPERATE, query=Chosen)
async def ask_discard(visit: Visit[Chosen]) -> Reply:
    groups, would = await asyncio.gather(
        _reached_groups(visit), visit.ask(discard, body={**visit.query.body, "dryRun": True})
    )
    return visit.show(
        "dead_letters/discard_form.html",
        groups=groups,
        all_shown=len(groups) < _GROUPS,
        count=would.count,
        more=would.more,
        given=visit.query.given(),
    )


@dead_letters.page("POST", "/dead-letters/discard", permission=Permission.OPERATE, query=Chosen)
async def do_discard(visit: Visit[Chosen]) -> Reply:
    done = await visit.ask(discard, body={**visit.query.body, "why": visit.form.get("why", "").strip()})
    more = "; there are more" if done.more else ""
    # An undo is offered only if the answer names all runs.
    exact = 0 < done.count == len(done.run_ids)
    undo = f"dead-letters/bring-back?ids={','.join(done.run_ids)}" if exact else ""
    return Done(words=f"{plural(done.count, 'dead letter')} discarded{more}.", to="dead-letters", undo=undo)


@dead_letters.page("POST", "/dead-letters/bring-back", permission=Permission.OPERATE, query=SomeQuery)
async def do_bring_back(visit: Visit[SomeQuery]) -> Reply:
    done = await visit.ask(bring_back, body={"runIds": visit.query.ids.split(",")})
    return Done(words=f"{plural(done.count, 'dead letter')} brought back.", to="dead-letters")


@dead_letters.page("GET", "/dead-letters/{fingerprint}", permission=Permission.READ, query=GroupQuery)
async def show_group(visit: Visit[GroupQuery]) -> Reply:
    chosen = {"fingerprint": visit.path["fingerprint"], "task": visit.query.task}
    groups, runs = await asyncio.gather(
        visit.ask(list_groups, query={**chosen, "limit": _GROUPS}),
        read_steadily(
            visit,
            list_dead,
            {**chosen, "cursor": visit.query.cursor, "limit": _RUNS},
            lambda run: str(run.run_id),
            by_id="list_runs",
        ),
    )
    if not groups.items:
        # The group existed when the link was shared.
        return visit.show("dead_letters/gone.html")
    group = groups.items[0]
    sample = await visit.ask("get_run", path={"id": group.sample_run_id})
    times = [isoformat(visit.now - hour * HOUR) for hour in reversed(range(len(group.trend)))]
    bars = [{"name": "failed", "colour": "--failed-fill", "values": list(group.trend)}]
    return visit.show(
        "dead_letters/group.html",
        group=group,
        chosen=chosen,
        sample=sample,
        page=runs.page,
        items=runs.items,
        fresh=runs.fresh,
        path=f"dead-letters/{quote(group.fingerprint)}",
        given={"task": visit.query.task, "cursor": visit.query.cursor},
        trend_chart=chart("bars", "runs", times, bars),
    )


async def _reached_groups(visit: Visit[Chosen]) -> list[GroupOut]:
    """List the groups that the visitor may act on; a viewer limited to queues may see others, too."""
    given = {**visit.query.given(), "limit": _GROUPS}
    queues = sorted(visit.principal.queues) if not visit.query.queue else []
    queries = [{**given, "queue": queue} for queue in queues] or [given]
    found = await asyncio.gather(*(visit.ask(list_groups, query=query) for query in queries))
    return sorted((group for groups in found for group in groups.items), key=lambda group: -group.count)[:_GROUPS]


def _count(groups: Groups) -> int:
    return sum(group.count for group in groups.items)


def _by_progress(replays: Replays) -> list[Any]:
    """Sort running replays first."""
    return sorted(replays.items, key=lambda replay: replay.state in ("done", "stopped"))


def _number(visit: Visit[Any], name: str) -> float | int | None:
    text = visit.form.get(name, "").strip()
    if not text:
        return None
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        raise AsWritten(name, f"{text!r:.40} is not a number", "for example 5") from None
