"""Tenants and keys."""

import msgspec
import pytest

from mainspring.core.model.access.access import ApiKey, Quotas, Role, Tenant, hash_secret
from mainspring.core.model.base.instant import HOUR, MINUTE
from mainspring.core.ports.storage.access import Author
from tests.support.builders import a_job, a_run
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api

ADA = Author("ada", why="because")


def a_key(identifier: str, tenant: str | None = "default", *, role: Role = Role.OPERATOR) -> ApiKey:
    return ApiKey(
        id=identifier,
        tenant=tenant,
        name="größe 🕰",
        role=role,
        secret_hash=hash_secret(identifier),
        queues=("mail", "images"),
        made_by="ada",
        expires_at=4_000_000_000_000_000,
    )


async def audited(harness: Harness) -> list[tuple[str, str, str]]:
    return [(entry.tenant, entry.action, entry.target) for entry in (await harness.store.audit(None))[::-1]]


async def test_the_default_tenant_always_exists(harness: Harness) -> None:
    assert Tenant(name="default") in await harness.store.tenants()


async def test_put_tenant_creates_a_tenant_or_changes_its_quotas(harness: Harness) -> None:
    before = await harness.now()
    made = await harness.store.put_tenant(Tenant(name="acme", quotas=Quotas(running=3)), ADA)
    assert (made.name, made.quotas) == ("acme", Quotas(running=3))
    assert before <= made.created_at <= await harness.now()
    assert made in await harness.store.tenants()
    await harness.advance(HOUR)
    quotas = Quotas(jobs=1, queued=2, running=0, submits_per_minute=4, payload_bytes=5)
    changed = await harness.store.put_tenant(Tenant(name="acme", quotas=quotas, created_at=17), ADA)
    assert changed == Tenant(name="acme", quotas=quotas, created_at=made.created_at)
    assert [tenant for tenant in await harness.store.tenants() if tenant.name == "acme"] == [changed]


async def test_the_quotas_of_the_default_tenant_can_be_changed(harness: Harness) -> None:
    made = await harness.store.put_tenant(Tenant(name="default", quotas=Quotas(jobs=1)), ADA)
    assert [tenant for tenant in await harness.store.tenants() if tenant.name == "default"] == [made]


async def test_tenants_are_listed_by_name_with_those_that_only_have_runs_or_jobs(harness: Harness) -> None:
    await harness.store.put_tenant(Tenant(name="zeta"), ADA)
    await harness.submit(a_run(tenant="runs-only"))
    await harness.put(a_job(tenant="jobs-only"))
    tenants = await harness.store.tenants()
    names = [tenant.name for tenant in tenants]
    assert names == sorted(set(names))
    assert {"default", "jobs-only", "runs-only", "zeta"} <= set(names)
    assert Tenant(name="runs-only") in tenants


async def test_put_tenant_writes_an_audit_entry_only_for_a_change(harness: Harness) -> None:
    await harness.store.put_tenant(Tenant(name="acme", quotas=Quotas(running=3, jobs=9)), ADA)
    for _ in range(2):
        quotas = Quotas(running=5, jobs=9, submits_per_minute=7)
        await harness.store.put_tenant(Tenant(name="acme", quotas=quotas), ADA)
    assert await audited(harness) == [("acme", "tenants.put", "acme")] * 2
    changed, made = await harness.store.audit("acme")
    assert made.before is None
    assert made.after is not None
    assert msgspec.json.decode(made.after) == {"jobs": 9, "running": 3}
    assert changed.before is not None
    assert changed.after is not None
    assert msgspec.json.decode(changed.before) == {"running": 3, "submitsPerMinute": None}
    assert msgspec.json.decode(changed.after) == {"running": 5, "submitsPerMinute": 7}
    assert changed.why == "because"


async def test_a_key_is_read_as_it_was_stored(harness: Harness) -> None:
    key = a_key("0123456789ab")
    before = await harness.now()
    kept = await harness.store.put_key(key, ADA)
    assert before <= kept.created_at <= await harness.now()
    assert msgspec.structs.replace(kept, created_at=0) == key
    assert await harness.store.key(key.id) == kept
    assert await harness.store.key("ffffffffffff") is None


async def test_storing_an_existing_key_changes_nothing(harness: Harness) -> None:
    kept = await harness.store.put_key(a_key("0123456789ab"), ADA)
    await harness.advance(MINUTE)
    assert await harness.store.put_key(a_key("0123456789ab", role=Role.ADMIN), ADA) == kept
    assert await harness.store.key(kept.id) == kept
    assert await audited(harness) == [("default", "keys.put", kept.id)]


async def test_the_audit_entry_of_a_new_key_has_its_permissions_but_no_secret(harness: Harness) -> None:
    await harness.store.put_key(a_key("0123456789ab"), ADA)
    [entry] = await harness.store.audit(None)
    assert entry.before is None
    assert entry.after is not None
    assert msgspec.json.decode(entry.after) == {
        "name": "größe 🕰",
        "role": "operator",
        "tenant": "default",
        "queues": ["mail", "images"],
        "expiresAt": "2096-10-02T07:06:40Z",
    }


async def test_keys_are_listed_newest_first_per_tenant(harness: Harness) -> None:
    keys = [("aaaaaaaaaaaa", "acme"), ("cccccccccccc", "default"), ("bbbbbbbbbbbb", "acme"), ("dddddddddddd", None)]
    for identifier, tenant in keys:
        await harness.store.put_key(a_key(identifier, tenant), ADA)
        await harness.advance(MINUTE)
    await harness.store.revoke_key("aaaaaaaaaaaa", None, ADA)
    assert [key.id[0] for key in await harness.store.keys(None)] == ["d", "b", "c", "a"]
    assert [key.id[0] for key in await harness.store.keys("acme")] == ["b", "a"]
    assert await harness.store.keys("beta") == []


async def test_a_revoked_key_stays_revoked(harness: Harness) -> None:
    key = await harness.store.put_key(a_key("0123456789ab"), ADA)
    before = await harness.now()
    revoked = await harness.store.revoke_key(key.id, "default", ADA)
    assert revoked is not None
    assert revoked.revoked_at is not None
    assert before <= revoked.revoked_at <= await harness.now()
    await harness.advance(MINUTE)
    assert await harness.store.revoke_key(key.id, None, ADA) == revoked
    assert await harness.store.put_key(a_key("0123456789ab"), ADA) == revoked
    assert await harness.store.key(key.id) == revoked
    assert await audited(harness) == [("default", "keys.put", key.id), ("default", "keys.revoke", key.id)]


async def test_a_key_of_another_tenant_cannot_be_revoked(harness: Harness) -> None:
    for identifier, tenant in (("aaaaaaaaaaaa", "acme"), ("bbbbbbbbbbbb", None)):
        key = await harness.store.put_key(a_key(identifier, tenant), ADA)
        assert await harness.store.revoke_key(key.id, "beta", ADA) is None
        assert await harness.store.key(key.id) == key
    assert await harness.store.revoke_key("ffffffffffff", None, ADA) is None
    assert [action for _, action, _ in await audited(harness)] == ["keys.put"] * 2


async def test_audit_entries_of_a_key_without_tenant_belong_to_no_tenant(harness: Harness) -> None:
    await harness.store.put_key(a_key("aaaaaaaaaaaa", None), ADA)
    await harness.store.put_key(a_key("bbbbbbbbbbbb", None), Author("root", "ops"))
    assert await audited(harness) == [("", "keys.put", "aaaaaaaaaaaa"), ("ops", "keys.put", "bbbbbbbbbbbb")]
    assert await harness.store.audit("default") == []


async def test_touch_keys_records_the_time_of_last_use(harness: Harness) -> None:
    used, unused = a_key("aaaaaaaaaaaa"), a_key("bbbbbbbbbbbb")
    for key in (used, unused):
        await harness.store.put_key(key, ADA)
    await harness.advance(HOUR)
    before = await harness.now()
    await harness.store.touch_keys([used.id, "ffffffffffff"])
    await harness.store.touch_keys([])
    one, other = await harness.store.key(used.id), await harness.store.key(unused.id)
    assert one is not None
    assert other is not None
    assert one.last_used_at is not None
    assert before <= one.last_used_at <= await harness.now()
    assert other.last_used_at is None
    assert len(await audited(harness)) == 2, "using a key is no change"


async def test_a_session_stays_signed_out_until_it_would_have_ended(harness: Harness) -> None:
    ends_at = await harness.now() + HOUR
    assert not await harness.store.is_signed_out("a")
    for _ in range(2):
        await harness.store.sign_out("a", ends_at)
    assert await harness.store.is_signed_out("a")
    assert not await harness.store.is_signed_out("b")
    await harness.advance(2 * HOUR)
    await harness.store.sign_out("b", await harness.now() + HOUR)
    assert await harness.store.is_signed_out("b")
    assert not await harness.store.is_signed_out("a"), "its record was removed"
