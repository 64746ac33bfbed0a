"""Dashboard page of the audit log: who changed what, when, with the values before and after."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote
from zoneinfo import ZoneInfo

import msgspec

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.ids import is_id
from mainspring.core.model.base.instant import from_datetime, isoformat
from mainspring.core.model.schedules.cron import load_zone
from mainspring.features.access.operations import list_audit, list_keys
from mainspring.features.access.schemas import AuditOut
from mainspring.web.live_lists import NewItemCount, get_shown_rows
from mainspring.web.page import Pages, Reply, Visit
from mainspring.web.text import pretty
from mainspring.web.zones import read_zone

audit = Pages()

_PAGE = 50
#: Targets that have a page, by the first word of an action.
_SHOWN = frozenset({"runs", "jobs", "queues", "workers", "keys", "tenants"})


class AuditListQuery(msgspec.Struct, frozen=True):
    author: str = ""
    target: str = ""
    tenant: str = ""
    action: str = ""
    #: In the format of a date and time field, in ``zone``: a shared link means the same time for its recipient.
    since: str = ""
    until: str = ""
    zone: str = ""
    cursor: str = ""


class Entry(NamedTuple):
    said: AuditOut
    #: The name of the target; empty if its id is all that is known.
    name: str
    #: Path of the target's page, below the base; empty if it has none.
    path: str
    #: Changed fields: name, value before, value after.
    changes: list[tuple[str, str, str]]


@audit.page("GET", "/audit", permission=Permission.ADMINISTER, query=AuditListQuery)
async def show_audit(visit: Visit[AuditListQuery]) -> Reply:
    given = msgspec.structs.asdict(visit.query)
    zone = load_zone(visit.query.zone) if visit.query.zone else read_zone(visit.headers)
    times = {name: _instant(text, zone) for name in ("since", "until") if (text := given[name])}
    asked = {**given, **times, "zone": "", "limit": _PAGE}
    page = await visit.ask(list_audit, query=asked)
    items, fresh = page.items, NewItemCount()
    if shown := [int(row) for row in get_shown_rows(visit) if row.isdecimal()]:
        # Entries never change: the same position always has the same entries.
        known = await visit.ask(list_audit, query={**asked, "cursor": max(shown) + 1, "limit": len(shown)})
        count = sum(entry.position > max(shown) for entry in page.items)
        items, fresh = known.items, NewItemCount(count, more=0 < count == len(page.items))
    names = await _read_names(visit, items)
    return visit.show(
        "audit/page.html",
        entries=[
            Entry(item, names.get(item.target, ""), _path(item), changes(item.before, item.after)) for item in items
        ],
        page=page,
        fresh=fresh,
        given=given,
        zone=zone.key,
        filtered=any(value for name, value in given.items() if name not in ("cursor", "zone")),
        of_all=visit.principal.tenant is None,
    )


async def _read_names(visit: Visit[Any], entries: Sequence[AuditOut]) -> dict[str, str]:
    """Return the names of the jobs, runs and keys among the targets that still exist."""
    kinds = {entry.target: entry.action.partition(".")[0] for entry in entries}
    found: dict[str, str] = {}
    for kind, operation in (("jobs", "list_jobs"), ("runs", "list_runs")):
        if ids := [target for target, one in kinds.items() if one == kind and is_id(target)]:
            page = await visit.ask(operation, query={"ids": ",".join(ids)})
            found |= {item.job_id if kind == "jobs" else item.run_id: item.name or item.task for item in page.items}
    if "keys" in kinds.values():
        keys = await visit.ask(list_keys)
        found |= {key.key_id: key.name for key in keys.items}
    return found


def _instant(text: str, zone: ZoneInfo) -> str:
    """Convert a time to UTC for the API. Invalid text is passed on, so that the API rejects it with its own message."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return text
    return isoformat(from_datetime(time if time.tzinfo else time.replace(tzinfo=zone)))


def _path(entry: AuditOut) -> str:
    place = entry.action.partition(".")[0]
    return f"{place}/{quote(entry.target, safe='')}" if place in _SHOWN and entry.target and entry.count == 1 else ""


_Side: TypeAlias = msgspec.Raw | msgspec.UnsetType


def changes(before: _Side, after: _Side) -> list[tuple[str, str, str]]:
    """Compare field by field if both sides are objects, otherwise as a whole."""
    was, now = _value(before), _value(after)
    if was is None and now is None:
        return []
    if not isinstance(was or {}, dict) or not isinstance(now or {}, dict):
        return [("", _text(was), _text(now))]
    was, now = was or {}, now or {}
    names = [*was, *(name for name in now if name not in was)]
    return [(name, _text(was.get(name)), _text(now.get(name))) for name in names if was.get(name) != now.get(name)]


def _value(raw: _Side) -> Any:
    return None if isinstance(raw, msgspec.UnsetType) else msgspec.json.decode(raw)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else pretty(value)
