"""Calendar rules shared by all stores."""

from collections.abc import Collection, Iterable, Sequence

from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.schedules.calendar import Calendar, CalendarSpec
from mainspring.core.model.schedules.job import JobSpec
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.calendars import TenantCalendars
from mainspring.stores.changes import what_differs

#: How many names an error lists.
_SHOWN = 5


def group_calendars(newest: Iterable[Calendar]) -> list[TenantCalendars]:
    """Group calendars by tenant. ``newest``: the newest version of each calendar, deleted ones too, in order.

    The revision of an almanac is the sum of the versions, so it grows with every change.
    """
    found: dict[str, list[Calendar]] = {}
    for calendar in newest:
        found.setdefault(calendar.tenant, []).append(calendar)
    return [
        TenantCalendars(
            tenant,
            sum(calendar.version for calendar in calendars),
            [calendar for calendar in calendars if not calendar.deleted],
        )
        for tenant, calendars in found.items()
    ]


def next_version(
    before: Calendar | None,
    tenant: str,
    name: str,
    spec: CalendarSpec,
    author: Author,
    now: Instant,
    expected_version: int | None,
) -> Calendar | None:
    """Return the version that a put creates; None if the spec is unchanged."""
    there = before is not None and not before.deleted
    if before is not None and there and before.spec == spec:
        return None
    version = 0 if before is None else before.version
    if expected_version is not None and expected_version != (version if there else 0):
        is_now = f"has version {version} by now" if there else "is not there"
        raise Conflict(f"calendar {name!r} {is_now}")
    return Calendar(
        tenant=tenant,
        name=name,
        version=version + 1,
        spec=spec,
        made_by=author.name,
        why=author.why,
        made_at=now,
    )


def gone(before: Calendar, author: Author, now: Instant) -> Calendar:
    return Calendar(
        tenant=before.tenant,
        name=before.name,
        version=before.version + 1,
        spec=before.spec,
        made_by=author.name,
        why=author.why,
        made_at=now,
        deleted=True,
    )


def calendar_differs(before: Calendar | None, after: Calendar) -> tuple[bytes, bytes]:
    """Return the audit's before and after. They leave out the spec, which is kept with its version."""
    was = {} if before is None else {"version": before.version, "deleted": before.deleted}
    return what_differs(was, {"version": after.version, "deleted": after.deleted}) or (b"{}", b"{}")


def refuse_unknown(spec: JobSpec, known: Collection[str]) -> None:
    """Raise ``Invalid`` if a job names a calendar that does not exist."""
    for name in spec.calendars:
        if name not in known:
            names = ", ".join(sorted(known)) if len(known) <= _SHOWN else f"{len(known)} others"
            there = f"there are {names}" if known else "there are none"
            raise Invalid("calendars", f"of job {spec.name!r} name {name!r}, which is not a calendar", there)


def refuse_used(name: str, users: Sequence[str]) -> None:
    if users:
        more = f" and {len(users) - _SHOWN} more" if len(users) > _SHOWN else ""
        raise Conflict(f"calendar {name!r} is minded by {', '.join(users[:_SHOWN])}{more}: change these jobs first")
