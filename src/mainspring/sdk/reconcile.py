"""Schedules of an application or a file, as what is asked of the API that compares them with the store."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from mainspring.features.schedules.operations import Reconcile
from mainspring.http.schemas.jobs import JobFields

PATH = "/v1/schedules/reconcile"


def request(source: str, tenant: str | None, schedules: Sequence[JobFields]) -> Reconcile:
    """A dry run of all of them. Without a tenant it is the one that the caller is bound to."""
    return Reconcile(
        source=source,
        schedules=[msgspec.Raw(msgspec.json.encode(fields)) for fields in schedules],
        tenant=UNSET if tenant is None else tenant,
        dry_run=True,
    )
