"""Operations on tenants, API keys and the audit log."""

import msgspec

from mainspring.core.model.access.access import ApiKey, Permission, Quotas, Role, Tenant
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import isoformat
from mainspring.core.model.runs.retention import STANDARD
from mainspring.core.ports.storage.access import AuditEntry, AuditFilter, Author
from mainspring.features.access.schemas import (
    AuditOut,
    AuditQuery,
    CreatedKey,
    KeyIn,
    KeyOut,
    Keys,
    QuotasIn,
    TenantIn,
    TenantOut,
    Tenants,
)
from mainspring.http.auth.authenticator import make_key
from mainspring.http.context import Api
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.problems import ObjectNotFound, Problem, RequestError
from mainspring.http.schemas.common import (
    Page,
    format_time,
    parse_span,
    parse_time,
)

access = Resource("Access", "Tenants, API keys and the audit log.")


@access.operation("GET", "/v1/tenants", permission=Permission.ADMINISTER_ALL, answers={200: Tenants})
async def list_tenants(api: Api, call: Call[Empty, Empty]) -> Answer:
    """List tenants.

    Returns each tenant with its quotas and its retention class. Needs a key that is bound to no tenant.
    """
    return Answer(200, Tenants(items=[_tenant_out(tenant) for tenant in await api.store.tenants()]))


@access.operation("PUT", "/v1/tenants", permission=Permission.ADMINISTER_ALL, body=TenantIn, answers={200: TenantOut})
async def put_tenant(api: Api, call: Call[TenantIn, Empty]) -> Answer:
    """Create a tenant, or change its quotas and retention.

    Sets all quotas: those that you leave out are removed. A retention class that you leave out stays as it is.
    """
    given, retention = call.body.quotas, call.body.retention
    if retention is msgspec.UNSET:
        known = {tenant.name: tenant.quotas.retention for tenant in await api.store.tenants()}
        kept = known.get(call.body.name, "")
    else:
        kept = "" if retention == STANDARD else retention
    tenant = Tenant(
        name=call.body.name,
        quotas=Quotas(
            jobs=given.jobs,
            queued=given.queued,
            running=given.running,
            submits_per_minute=given.submits_per_minute,
            payload_bytes=given.payload_bytes,
            retention=kept,
            log_bytes_per_day=given.log_bytes_per_day,
            log_days=given.log_days,
        ),
    )
    tenant.check()
    put = await api.store.put_tenant(tenant, Author(call.principal.name, tenant.name))
    return Answer(200, _tenant_out(put))


@access.operation("GET", "/v1/keys", permission=Permission.ADMINISTER, answers={200: Keys})
async def list_keys(api: Api, call: Call[Empty, Empty]) -> Answer:
    """List API keys, newest first.

    The secrets of the keys are not stored and not returned.
    """
    return Answer(200, Keys(items=[_key_out(key) for key in await api.seen_by(call.principal).keys(None)]))


@access.operation(
    "POST",
    "/v1/keys",
    permission=Permission.ADMINISTER,
    body=KeyIn,
    answers={201: CreatedKey},
    example={"name": "shop", "role": "submitter", "queues": ["mail"], "expiresIn": "90d"},
)
async def create_key(api: Api, call: Call[KeyIn, Empty]) -> Answer:
    """Create an API key.

    The answer is the only place that contains the secret. A caller that is bound to a tenant or to queues can
    create keys only within these. Otherwise a tenant that does not exist is created with its first key.
    """
    body = call.body
    tenant = call.principal.choose_tenant(body.tenant)
    queues = tuple(dict.fromkeys(body.queues)) or tuple(sorted(call.principal.queues))
    if not call.principal.reaches(queues):
        raise Invalid(
            "queues", "your key does not have access to all of them", ", ".join(sorted(call.principal.queues))
        )
    valid_for = None if body.expires_in is None else parse_span(body.expires_in, "expiresIn")
    if valid_for == 0:
        raise Invalid("expiresIn", "must be longer than zero", 'for example "90d"')
    key, text = make_key(
        name=body.name,
        role=Role(body.role),
        tenant=tenant,
        author=call.principal.name,
        queues=queues,
        expires_at=None if valid_for is None else api.clock.now() + valid_for,
    )
    author = Author(call.principal.name, tenant)
    if tenant is not None and call.principal.tenant is None and not await api.has_tenant(tenant):
        await api.store.put_tenant(Tenant(name=tenant), author)
    kept = await api.store.put_key(key, author)
    shown = msgspec.structs.asdict(_key_out(kept))
    return Answer(201, CreatedKey(**shown, key=text))


@access.operation(
    "DELETE", "/v1/keys/{id}", permission=Permission.ADMINISTER, answers={200: KeyOut, 404: Problem, 409: Problem}
)
async def revoke_key(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Revoke an API key.

    Every API process rejects it within five seconds and closes its streams. A caller that is bound to queues can
    revoke only keys within these. 409: a key cannot revoke itself.
    """
    identifier = call.path["id"]
    if not (identifier.isascii() and identifier.isalnum()):
        raise ObjectNotFound
    if call.principal.name == f"key:{identifier}":
        raise RequestError(409, "Conflict", "a key cannot revoke itself", hint="use the key of another administrator")
    known = await api.store.key(identifier)
    if known is None or call.principal.tenant not in (None, known.tenant):
        raise ObjectNotFound
    if not call.principal.reaches(known.queues):
        raise RequestError(403, "Forbidden", "this key has access to queues that yours does not")
    author = Author(call.principal.name, call.principal.tenant)
    key = await api.store.revoke_key(identifier, call.principal.tenant, author)
    if key is None:
        raise ObjectNotFound
    api.auth.forget(identifier)
    return Answer(200, _key_out(key))


@access.operation("GET", "/v1/audit", permission=Permission.ADMINISTER, query=AuditQuery, answers={200: Page[AuditOut]})
async def list_audit(api: Api, call: Call[Empty, AuditQuery]) -> Answer:
    """List changes by people and keys, newest first.

    Each entry has its author, its time, the target, and the values before and after. An entry must match every
    filter.
    """
    query = call.query
    entries = await api.seen_by(call.principal).audit(
        api.choose_listed(call.principal, query.tenant),
        AuditFilter(
            target=query.target or "",
            author=query.author or "",
            action=query.action or "",
            since=parse_time(query.since, "since"),
            until=parse_time(query.until, "until"),
        ),
        before=None if query.cursor is None else int(query.cursor),
        limit=query.limit + 1,
    )
    shown = entries[: query.limit]
    following = str(shown[-1].position) if len(entries) > query.limit else None
    return Answer(200, Page(items=[_audit_out(entry) for entry in shown], next_cursor=following))


def _tenant_out(tenant: Tenant) -> TenantOut:
    quotas = tenant.quotas
    return TenantOut(
        name=tenant.name,
        quotas=QuotasIn(
            jobs=quotas.jobs,
            queued=quotas.queued,
            running=quotas.running,
            submits_per_minute=quotas.submits_per_minute,
            payload_bytes=quotas.payload_bytes,
            log_bytes_per_day=quotas.log_bytes_per_day,
            log_days=quotas.log_days,
        ),
        retention=quotas.retention or STANDARD,
        created_at=format_time(tenant.created_at or None),
    )


def _key_out(key: ApiKey) -> KeyOut:
    return KeyOut(
        key_id=key.id,
        name=key.name,
        role=key.role.value,
        created_at=isoformat(key.created_at),
        tenant=key.tenant,
        queues=key.queues,
        made_by=key.made_by,
        expires_at=format_time(key.expires_at),
        revoked_at=format_time(key.revoked_at),
        last_used_at=format_time(key.last_used_at),
    )


def _audit_out(entry: AuditEntry) -> AuditOut:
    return AuditOut(
        position=entry.position,
        time=isoformat(entry.at),
        tenant=entry.tenant,
        author=entry.author,
        action=entry.action,
        target=entry.target,
        count=entry.count,
        before=msgspec.UNSET if entry.before is None else msgspec.Raw(entry.before),
        after=msgspec.UNSET if entry.after is None else msgspec.Raw(entry.after),
        why=entry.why,
    )
