"""Runs a bulk action on all objects that match a filter."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from mainspring.cli.client.target import Client, decode_answer
from mainspring.cli.output import Output, confirm
from mainspring.core.model.base.errors import Invalid


class BulkResult(msgspec.Struct, rename="camel"):
    action: str
    matched: int
    changed: int
    more: bool
    dry_run: bool
    sample: list[str]


async def act_on_many(
    api: Client,
    out: Output,
    action: Literal["cancel"],
    target: Literal["jobs", "runs"],
    filters: Mapping[str, object],
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Count the matching objects, ask for confirmation, and repeat the action until none is left."""
    given = {name: value for name, value in filters.items() if value}
    if not given:
        raise Invalid(target, "nothing says which are meant", "ids, a filter such as --task, or --all")
    body = {"action": action, "target": target, "tenant": api.tenant, **given}
    answer = await api.ask("POST", "/v1/bulk", body={**body, "dryRun": True}, repeatable=True)
    found = decode_answer(answer, BulkResult)
    if not dry_run and found.matched:
        confirm(f"{action} {found.matched}{' or more' if found.more else ''} {target}", yes)
        changed, more = 0, True
        while more:
            answer = await api.ask("POST", "/v1/bulk", body=body, repeatable=True)
            done = decode_answer(answer, BulkResult)
            changed += done.changed
            # Stop without progress; otherwise this would loop forever.
            more = done.more and done.changed > 0
        found = BulkResult(
            action=action,
            matched=max(found.matched, changed),
            changed=changed,
            more=False,
            dry_run=False,
            sample=found.sample,
        )
    words = f"{found.matched}{'+' if found.more else ''} would be" if dry_run else f"{found.changed} {target}"
    out.render(found, found.sample, lambda: out.print(f"{words} {action}led"))
