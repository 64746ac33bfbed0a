"""Schedules of an application or a file, as what is asked of the API that compares them with the store."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from mainspring.api.routes.schedules import Reconcile
from mainspring.api.schemas.job_answers import fields_of_spec
from mainspring.domain.job import JobSpec

PATH = "/v1/schedules/reconcile"


def request(source: str, tenant: str | None, schedules: Sequence[tuple[JobSpec, bytes]]) -> Reconcile:
    """A dry run of all of them. Without a tenant it is the one that the caller is bound to."""
    return Reconcile(
        source=source,
        schedules=[msgspec.Raw(msgspec.json.encode(fields_of_spec(spec, payload))) for spec, payload in schedules],
        tenant=UNSET if tenant is None else tenant,
        dry_run=True,
    )
