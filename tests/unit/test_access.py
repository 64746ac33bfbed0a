"""Roles, permissions, API keys and quotas."""

import msgspec
import pytest

from mainspring.core.model.access.access import (
    GRANTS,
    KEY_ID_LENGTH,
    MOST_QUOTA,
    SECRET_LENGTH,
    ApiKey,
    Permission,
    Principal,
    Quotas,
    Role,
    Tenant,
    hash_secret,
    read_key,
    write_key,
)
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.runs.names import MAX_PAYLOAD

IDENTIFIER = "0123456789ab"
SECRET = "s" * SECRET_LENGTH
KEY = ApiKey(id=IDENTIFIER, tenant="acme", name="ci", role=Role.SUBMITTER, secret_hash=hash_secret(SECRET))


def a_principal(role: Role, tenant: str | None = None) -> Principal:
    return Principal(name="ada", role=role, tenant=tenant)


@pytest.mark.parametrize(
    ("role", "permissions"),
    [
        (Role.VIEWER, {Permission.READ}),
        (Role.SUBMITTER, {Permission.READ, Permission.SUBMIT}),
        (Role.OPERATOR, {Permission.READ, Permission.SUBMIT, Permission.OPERATE}),
        (Role.ADMIN, set(Permission)),
        (Role.WORKER, {Permission.WORK}),
    ],
)
def test_a_role_grants_exactly_its_permissions(role: Role, permissions: set[Permission]) -> None:
    assert {permission for permission in Permission if a_principal(role).may(permission)} == permissions


def test_every_role_has_grants() -> None:
    assert set(GRANTS) == set(Role)


@pytest.mark.parametrize("role", list(Role))
def test_a_principal_bound_to_a_tenant_never_administers_all_tenants(role: Role) -> None:
    assert not a_principal(role, "acme").may(Permission.ADMINISTER_ALL)
    ordinary = set(Permission) - {Permission.ADMINISTER_ALL}
    assert all(a_principal(role, "acme").may(asked) is a_principal(role).may(asked) for asked in ordinary)


def test_an_api_key_is_parsed_as_it_was_written() -> None:
    assert write_key(IDENTIFIER, SECRET) == f"ms_{IDENTIFIER}_{SECRET}"
    assert read_key(write_key(IDENTIFIER, SECRET)) == (IDENTIFIER, SECRET)
    awkward = "_-" * (SECRET_LENGTH // 2) + "_"
    assert read_key(write_key(IDENTIFIER, awkward)) == (IDENTIFIER, awkward)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ms",
        "ms__",
        IDENTIFIER,
        f"mx_{IDENTIFIER}_{SECRET}",
        f"ms_{IDENTIFIER}_{SECRET[1:]}",
        f"ms_{IDENTIFIER}_{SECRET}s",
        f"ms_{IDENTIFIER[1:]}_{SECRET}",
        f"ms_{IDENTIFIER}{SECRET}",
        f"ms_{IDENTIFIER}_{SECRET[1:]}ß",
        f" ms_{IDENTIFIER}_{SECRET}",
        "eyJhbGciOiJSUzI1NiJ9.e30.c2lnbmF0dXJl",
    ],
)
def test_text_that_is_not_an_api_key_is_not_parsed_as_one(text: str) -> None:
    assert read_key(text) is None
    assert len(IDENTIFIER) == KEY_ID_LENGTH


def test_a_key_is_valid_with_its_secret_until_it_expires_or_is_revoked() -> None:
    assert KEY.is_valid(SECRET, 100)
    assert not KEY.is_valid(SECRET[1:] + "x", 100)
    assert not KEY.is_valid("", 100)
    expiring = msgspec.structs.replace(KEY, expires_at=100)
    assert expiring.is_valid(SECRET, 99)
    assert not expiring.is_valid(SECRET, 100)
    assert not msgspec.structs.replace(KEY, revoked_at=1).is_valid(SECRET, 100)


def test_a_stored_api_key_does_not_contain_its_secret() -> None:
    assert SECRET.encode() not in msgspec.json.encode(KEY)
    assert hash_secret(SECRET) != hash_secret(SECRET[1:] + "x")


def test_the_principal_of_an_api_key_has_its_role_tenant_and_queues() -> None:
    key = msgspec.structs.replace(KEY, queues=("mail", "images"))
    assert key.principal == Principal(
        name=f"key:{IDENTIFIER}", role=Role.SUBMITTER, tenant="acme", queues=frozenset({"mail", "images"})
    )


@pytest.mark.parametrize(
    ("key", "field"),
    [
        (msgspec.structs.replace(KEY, name=""), "name"),
        (msgspec.structs.replace(KEY, tenant=" acme"), "tenant"),
        (msgspec.structs.replace(KEY, queues=("mail", "a\nb")), "queues"),
    ],
)
def test_an_api_key_with_an_invalid_name_is_rejected(key: ApiKey, field: str) -> None:
    KEY.check()
    with pytest.raises(Invalid) as error:
        key.check()
    assert error.value.field == field


@pytest.mark.parametrize("field", sorted({*Quotas.__struct_fields__} - {"retention"}))
def test_a_quota_is_zero_or_more(field: str) -> None:
    Quotas().check()
    msgspec.structs.replace(Quotas(), **{field: 0}).check()
    for wrong in (-1, MOST_QUOTA + 1):
        with pytest.raises(Invalid) as error:
            msgspec.structs.replace(Quotas(), **{field: wrong}).check()
        assert error.value.field == f"quotas.{field}"


def test_a_payload_quota_cannot_exceed_the_maximum_payload_size() -> None:
    Quotas(payload_bytes=MAX_PAYLOAD).check()
    with pytest.raises(Invalid):
        Quotas(payload_bytes=MAX_PAYLOAD + 1).check()


def test_a_tenant_needs_a_name_and_valid_quotas() -> None:
    Tenant(name="acme", quotas=Quotas(running=1)).check()
    with pytest.raises(Invalid):
        Tenant(name="").check()
    with pytest.raises(Invalid):
        Tenant(name="acme", quotas=Quotas(running=-1)).check()
