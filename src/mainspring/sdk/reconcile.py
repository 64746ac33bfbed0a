"""Builds the request that compares declared schedules with the store."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from mainspring.features.schedules.operations import ReconcileIn
from mainspring.http.schemas.jobs import JobFields

PATH = "/v1/schedules/reconcile"


def build_request(source: str, tenant: str | None, schedules: Sequence[JobFields]) -> ReconcileIn:
    """Return a dry run with all schedules. Without a tenant the API uses the caller's."""
    return ReconcileIn(
        source=source,
        schedules=[msgspec.Raw(msgspec.json.encode(fields)) for fields in schedules],
        tenant=UNSET if tenant is None else tenant,
        dry_run=True,
    )
