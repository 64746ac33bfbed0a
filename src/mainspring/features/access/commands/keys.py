"""``mainspring keys``. Also works on the store itself, since the first key cannot be requested from a protected API."""

from typing import Annotated

import typer

from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, ItemPage, decode_answer, quote_segment
from mainspring.cli.output import Output
from mainspring.core.model.access.access import DEFAULT_TENANT, Role
from mainspring.core.model.base.errors import Invalid, NotFound
from mainspring.core.model.base.instant import Instant, check_instant, format_duration, parse_duration, parse_instant
from mainspring.core.model.runs.names import check_name
from mainspring.features.access.schemas import CreatedKey, KeyOut
from mainspring.http.auth.authenticator import REFUSED_WITHIN

#: The shortest part of an id that names a key.
_SHORTEST_PREFIX = 4
_ROLES = "viewer, submitter, operator, admin or worker"
group = typer.Typer(name="keys", help="Create, list and revoke API keys.", no_args_is_help=True)


def register(application: typer.Typer) -> None:
    application.add_typer(group)


@command(group, "create", makes_store=True)
async def create(
    api: Client,
    out: Output,
    role: Annotated[str, typer.Option("--role", help=f"{_ROLES}.")],
    name: Annotated[
        str | None, typer.Option("--name", help="The key's name; default: the role.", show_default=False)
    ] = None,
    all_tenants: Annotated[bool, typer.Option("--all-tenants", help="Do not bind the key to a tenant.")] = False,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue", "-q", help="Restrict the key to this queue; repeatable. Default: all queues.", show_default=False
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", help="How long the key is valid, such as 90d. Default: no expiry.")
    ] = None,
) -> None:
    """Create a key, bound to --tenant. It is printed only now and not stored; everything else goes to stderr.

    Example: mainspring keys create --name ci --role submitter --tenant acme --expires 90d > ci.key
    """
    if api.tenant is not None and all_tenants:
        raise Invalid("--tenant", "contradicts --all-tenants")
    if api.tenant is None and not all_tenants and not api.is_local:
        raise Invalid("--tenant", "is missing", "--tenant NAME, or --all-tenants")
    tenant = None if all_tenants else DEFAULT_TENANT if api.tenant is None else check_name("tenant", api.tenant)
    if role not in set(Role):
        raise Invalid("--role", f"{role!r} is not a role", _ROLES)
    valid_for = None if expires is None else parse_duration(expires, "--expires")
    if valid_for == 0:
        raise Invalid("--expires", "must be longer than zero", "for example 90d")
    if valid_for is not None:
        check_instant(out.now() + valid_for, "--expires")
    body = {
        "name": role if name is None else name,
        "role": role,
        "tenant": tenant,
        "queues": [check_name("queues", one) for one in dict.fromkeys(queue or ())],
        "expiresIn": expires,
    }
    answer = await api.ask("POST", "/v1/keys", body=body)
    key = decode_answer(answer, CreatedKey)

    def show() -> None:
        typer.echo(key.key)
        until = "without expiry" if key.expires_at is None else f"until {key.expires_at}"
        out.report(
            f"key {key.key_id}: {key.role} of {_describe_tenant(key)}, {until}. The secret is not shown again.\n"
            "Send it as: Authorization: Bearer <key>"
        )

    # With --quiet the key is printed, not its id: the id can be listed later, the key cannot.
    out.render(answer, [key.key], show)


@command(group, "list")
async def list_keys(api: Client, out: Output) -> None:
    """List keys, newest first, including revoked and expired ones. Their secrets are not stored.

    Example: mainspring keys list --tenant acme
    """
    answer = decode_answer(await api.ask("GET", "/v1/keys"), ItemPage)
    keys = [(item, decode_answer(item, KeyOut)) for item in answer.items]
    if api.tenant is not None:
        keys = [(item, key) for item, key in keys if key.tenant == api.tenant]

    def show() -> None:
        out.rows(
            ("ID", "NAME", "ROLE", "TENANT", "STATE", "EXPIRES", "LAST USED", "QUEUES"),
            [
                (
                    key.key_id,
                    key.name,
                    key.role,
                    _describe_tenant(key),
                    _describe_state(key, out.now()),
                    (key.expires_at or "never")[:10],
                    (key.last_used_at or "never")[:10],
                    ",".join(key.queues) or "all",
                )
                for _, key in keys
            ],
            empty="no keys; to create one: mainspring keys create --role submitter",
        )

    out.render({"items": [item for item, _ in keys]}, [key.key_id for _, key in keys], show)


@command(group, "revoke")
async def revoke(
    api: Client,
    out: Output,
    identifier: Annotated[str, typer.Argument(help="The key's id, its first characters, or its name.", metavar="KEY")],
) -> None:
    """Revoke a key for good.

    Examples:

    mainspring keys revoke 1a2b3c4d5e6f

    mainspring keys revoke ci
    """
    identifier = await _find(api, identifier)
    try:
        answer = await api.ask("DELETE", f"/v1/keys/{quote_segment(identifier)}", repeatable=True)
    except NotFound:
        # The message omits the argument, which may be a whole key.
        raise NotFound("there is no key with this id; see: mainspring keys list") from None
    out.render(
        answer,
        [identifier],
        lambda: out.report(f"revoked; rejected by every process within {format_duration(REFUSED_WITHIN)}"),
    )


async def _find(api: Client, text: str) -> str:
    """Return the id of the valid key that ``text`` names or begins. Return ``text`` if there is none."""
    keys = [decode_answer(item, KeyOut) for item in decode_answer(await api.ask("GET", "/v1/keys"), ItemPage).items]
    mine = [key for key in keys if api.tenant in (None, key.tenant) and key.revoked_at is None]
    found = [key for key in mine if key.name == text] or [
        key for key in mine if len(text) >= _SHORTEST_PREFIX and key.key_id.startswith(text)
    ]
    if len(found) > 1:
        listed = ", ".join(f"{key.key_id} ({key.name}, {key.role} of {_describe_tenant(key)})" for key in found[:8])
        raise Invalid("key", f"{len(found)} valid keys match", f"one of {listed}")
    return found[0].key_id if found else text


def _describe_tenant(key: KeyOut) -> str:
    return "all tenants" if key.tenant is None else key.tenant


def _describe_state(key: KeyOut, now: Instant) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and now >= parse_instant(key.expires_at) else "valid"
