"""Dashboard pages of API keys: list, create, show and revoke."""

import asyncio
from typing import Any

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.instant import Instant
from mainspring.features.access.operations import create_key, list_audit, list_keys, revoke_key
from mainspring.features.access.schemas import KeyOut, Keys
from mainspring.http.problems import ObjectNotFound
from mainspring.web.formatting import instant
from mainspring.web.page import ActionReply, Pages, Reply, Visit

keys = Pages()

ROLES = {
    "viewer": "read-only",
    "submitter": "read and submit",
    "operator": "read, submit, cancel, pause, replay",
    "admin": "everything, including keys and quotas",
    "worker": "claim and complete runs over HTTP",
}
_EXPIRY = {"30d": "30 days", "90d": "90 days", "365d": "a year", "": "never"}
_ENTRIES = 10


@keys.page("GET", "/keys", permission=Permission.ADMINISTER)
async def show_keys(visit: Visit[Any]) -> Reply:
    found: Keys = await visit.ask(list_keys)
    states = {key.key_id: _state(key, visit.now) for key in found.items}
    return visit.show(
        "keys/list.html",
        keys=sorted(found.items, key=lambda key: states[key.key_id] != "valid"),
        states=states,
        required=visit.api.auth.required,
    )


@keys.page("GET", "/keys/new", permission=Permission.ADMINISTER)
async def ask_key(visit: Visit[Any]) -> Reply:
    bound = visit.principal.tenant
    return visit.show("keys/new.html", roles=ROLES, expiry=_EXPIRY, bound=bound, queues=sorted(visit.principal.queues))


@keys.page("POST", "/keys/new", permission=Permission.ADMINISTER)
async def do_create(visit: Visit[Any]) -> Reply:
    form = visit.form
    body: dict[str, Any] = {"name": form.get("name", "").strip(), "role": form.get("role", "")}
    for field, name in (("tenant", "tenant"), ("expiresIn", "expires")):
        if value := form.get(name, "").strip():
            body[field] = value
    if queues := [queue.strip() for queue in form.get("queues", "").split(",") if queue.strip()]:
        body["queues"] = queues
    # Rendered directly instead of a redirect, because the secret cannot be shown again.
    return visit.show("keys/made.html", made=await visit.ask(create_key, body=body))


@keys.page("GET", "/keys/{id}", permission=Permission.ADMINISTER)
async def show_key(visit: Visit[Any]) -> Reply:
    identifier = visit.path["id"]
    found, entries = await asyncio.gather(
        visit.ask(list_keys), visit.ask(list_audit, query={"author": f"key:{identifier}", "limit": _ENTRIES})
    )
    key: KeyOut | None = next((one for one in found.items if one.key_id == identifier), None)
    if key is None:
        raise ObjectNotFound
    return visit.show(
        "keys/detail.html",
        key=key,
        state=_state(key, visit.now),
        entries=entries.items,
        words=ROLES.get(key.role, ""),
        own=visit.principal.name == f"key:{identifier}",
    )


@keys.page("POST", "/keys/{id}/revoke", permission=Permission.ADMINISTER)
async def do_revoke(visit: Visit[Any]) -> Reply:
    await visit.ask(revoke_key, path=visit.path)
    return ActionReply(words="Key revoked. Every process rejects it within seconds.", to=f"keys/{visit.path['id']}")


def _state(key: KeyOut, now: Instant) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and instant(key.expires_at) <= now else "valid"
