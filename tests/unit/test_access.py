"""Who may do what: roles, keys and quotas."""

import msgspec
import pytest

from mainspring.domain.access import (
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
from mainspring.domain.errors import Invalid
from mainspring.domain.run import MAX_PAYLOAD

IDENTIFIER = "0123456789ab"
SECRET = "s" * SECRET_LENGTH
KEY = ApiKey(id=IDENTIFIER, tenant="acme", name="ci", role=Role.SUBMITTER, secret_hash=hash_secret(SECRET))


def somebody(role: Role, tenant: str | None = None) -> Principal:
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
def test_a_role_grants_this_and_nothing_else(role: Role, permissions: set[Permission]) -> None:
    assert {permission for permission in Permission if somebody(role).may(permission)} == permissions


def test_every_role_is_in_the_table() -> None:
    assert set(GRANTS) == set(Role)


@pytest.mark.parametrize("role", list(Role))
def test_somebody_bound_to_a_tenant_never_administers_all(role: Role) -> None:
    assert not somebody(role, "acme").may(Permission.ADMINISTER_ALL)
    ordinary = set(Permission) - {Permission.ADMINISTER_ALL}
    assert all(somebody(role, "acme").may(asked) is somebody(role).may(asked) for asked in ordinary)


def test_a_key_is_read_as_it_was_written() -> None:
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
def test_what_is_no_key_is_not_read_as_one(text: str) -> None:
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


def test_the_secret_is_not_in_what_is_kept() -> None:
    assert SECRET.encode() not in msgspec.json.encode(KEY)
    assert hash_secret(SECRET) != hash_secret(SECRET[1:] + "x")


def test_the_holder_of_a_key_is_who_the_key_says() -> None:
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
def test_a_key_with_a_bad_name_is_refused(key: ApiKey, field: str) -> None:
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


def test_no_quota_lets_payloads_be_larger_than_the_engine_does() -> None:
    Quotas(payload_bytes=MAX_PAYLOAD).check()
    with pytest.raises(Invalid):
        Quotas(payload_bytes=MAX_PAYLOAD + 1).check()


def test_a_tenant_has_a_name_and_quotas_that_hold() -> None:
    Tenant(name="acme", quotas=Quotas(running=1)).check()
    with pytest.raises(Invalid):
        Tenant(name="").check()
    with pytest.raises(Invalid):
        Tenant(name="acme", quotas=Quotas(running=-1)).check()
