"""Dashboard pages of dead-letter groups: list, replay and discard."""

import asyncio
from typing import Any
from urllib.parse import quote

import msgspec

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.instant import HOUR, isoformat
from mainspring.features.dead_letters.operations.groups import bring_back, discard, list_dead, list_groups, replay
from mainspring.features.dead_letters.operations.replays import Replays, list_replays, start_replay
from mainspring.http.problems import RequestFieldError
from mainspring.http.schemas.dead_letters import GroupOut, Groups
from mainspring.web.charts import encode_chart
from mainspring.web.formatting import plural
from mainspring.web.live_lists import keep_order, read_live_list
from mainspring.web.page import ActionReply, Pages, Reply, Visit, read_json_field

dead_letters = Pages()

_MAX_GROUPS = 50
_PAGE = 20
_MAX_REPLAYS = 5
#: Suggested number of canaries.
_MAX_CANARIES = 5


class SelectionQuery(msgspec.Struct, frozen=True):
    """Selects dead letters; without a field, all of them."""

    fingerprint: str = ""
    task: str = ""
    queue: str = ""

    def as_query(self) -> dict[str, object]:
        """Return the selection as query parameters."""
        return msgspec.structs.asdict(self)

    @property
    def body(self) -> dict[str, object]:
        """Return the selection as a request body."""
        filled = {name: value for name, value in self.as_query().items() if value}
        return filled or {"everything": True}


class RunIdsQuery(msgspec.Struct, frozen=True):
    ids: str = ""


class GroupQuery(msgspec.Struct, frozen=True):
    task: str = ""
    cursor: str = ""


@dead_letters.page("GET", "/dead-letters", permission=Permission.READ, query=SelectionQuery)
async def show_groups(visit: Visit[SelectionQuery]) -> Reply:
    given = visit.query.as_query()
    groups, replays = await asyncio.gather(
        visit.ask(list_groups, query={**given, "limit": _MAX_GROUPS}),
        visit.ask(list_replays, query={"limit": _MAX_REPLAYS}),
    )
    return visit.show(
        "dead_letters/list.html",
        groups=keep_order(visit, groups.items, lambda group: f"{group.fingerprint}-{group.task}"),
        count=_count_runs(groups),
        more=len(groups.items) == _MAX_GROUPS,
        replays=_sort_open_first(replays),
        given=given,
        filtered=any(given.values()),
    )


@dead_letters.page("GET", "/dead-letters/replay", permission=Permission.OPERATE, query=SelectionQuery)
async def ask_replay(visit: Visit[SelectionQuery]) -> Reply:
    """Preview a replay. A stored replay handles all matching dead letters, even more than are counted here."""
    groups, preview = await asyncio.gather(
        _list_actionable_groups(visit), visit.ask(replay, body={**visit.query.body, "dryRun": True})
    )
    return visit.show(
        "dead_letters/replay_form.html",
        groups=groups,
        all_shown=len(groups) < _MAX_GROUPS,
        which=("more than " if preview.more else "") + plural(preview.count, "dead letter"),
        count=preview.count,
        given=visit.query.as_query(),
        canaries=min(_MAX_CANARIES, max(preview.count - 1, 0)),
    )


@dead_letters.page("POST", "/dead-letters/replay", permission=Permission.OPERATE, query=SelectionQuery)
async def do_replay(visit: Visit[SelectionQuery]) -> Reply:
    body: dict[str, Any] = {**visit.query.body, "canaries": _parse_number(visit, "canaries") or 0}
    if (pace := _parse_number(visit, "perSecond")) is not None:
        body["perSecond"] = pace
    if (patch := read_json_field(visit.form, "payloadPatch")) is not None:
        body["payloadPatch"] = patch
    made = await visit.ask(start_replay, body=body)
    return ActionReply(words="Replay started.", to=f"dead-letters/replays/{made.replay_id}", leave=True)


@dead_letters.page("GET", "/dead-letters/discard", permission=Permission.OPERATE, query=SelectionQuery)
async def ask_discard(visit: Visit[SelectionQuery]) -> Reply:
    groups, preview = await asyncio.gather(
        _list_actionable_groups(visit), visit.ask(discard, body={**visit.query.body, "dryRun": True})
    )
    return visit.show(
        "dead_letters/discard_form.html",
        groups=groups,
        all_shown=len(groups) < _MAX_GROUPS,
        count=preview.count,
        more=preview.more,
        given=visit.query.as_query(),
    )


@dead_letters.page("POST", "/dead-letters/discard", permission=Permission.OPERATE, query=SelectionQuery)
async def do_discard(visit: Visit[SelectionQuery]) -> Reply:
    done = await visit.ask(discard, body={**visit.query.body, "why": visit.form.get("why", "").strip()})
    more = "; there are more" if done.more else ""
    # An undo is offered only if the answer names all runs.
    exact = 0 < done.count == len(done.run_ids)
    undo = f"dead-letters/bring-back?ids={','.join(done.run_ids)}" if exact else ""
    return ActionReply(words=f"{plural(done.count, 'dead letter')} discarded{more}.", to="dead-letters", undo=undo)


@dead_letters.page("POST", "/dead-letters/bring-back", permission=Permission.OPERATE, query=RunIdsQuery)
async def do_bring_back(visit: Visit[RunIdsQuery]) -> Reply:
    done = await visit.ask(bring_back, body={"runIds": visit.query.ids.split(",")})
    return ActionReply(words=f"{plural(done.count, 'dead letter')} restored.", to="dead-letters")


@dead_letters.page("GET", "/dead-letters/{fingerprint}", permission=Permission.READ, query=GroupQuery)
async def show_group(visit: Visit[GroupQuery]) -> Reply:
    chosen = {"fingerprint": visit.path["fingerprint"], "task": visit.query.task}
    groups, runs = await asyncio.gather(
        visit.ask(list_groups, query={**chosen, "limit": _MAX_GROUPS}),
        read_live_list(
            visit,
            list_dead,
            {**chosen, "cursor": visit.query.cursor, "limit": _PAGE},
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
        trend_chart=encode_chart("bars", "runs", times, bars),
    )


async def _list_actionable_groups(visit: Visit[SelectionQuery]) -> list[GroupOut]:
    """List the groups that the visitor may act on; a viewer limited to queues may see others, too."""
    given = {**visit.query.as_query(), "limit": _MAX_GROUPS}
    queues = sorted(visit.principal.queues) if not visit.query.queue else []
    queries = [{**given, "queue": queue} for queue in queues] or [given]
    found = await asyncio.gather(*(visit.ask(list_groups, query=query) for query in queries))
    return sorted((group for groups in found for group in groups.items), key=lambda group: -group.count)[:_MAX_GROUPS]


def _count_runs(groups: Groups) -> int:
    return sum(group.count for group in groups.items)


def _sort_open_first(replays: Replays) -> list[Any]:
    """Sort running replays first."""
    return sorted(replays.items, key=lambda replay: replay.state in ("done", "stopped"))


def _parse_number(visit: Visit[Any], name: str) -> float | int | None:
    text = visit.form.get(name, "").strip()
    if not text:
        return None
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        raise RequestFieldError(name, f"{text!r:.40} is not a number", "for example 5") from None
