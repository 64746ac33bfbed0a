"""API keys, made and ended on the store itself: the first one cannot be asked of an API that lets nobody in."""

import asyncio
import getpass
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, TypeVar

import typer

from mainspring.api.auth import REFUSED_WITHIN, make_key
from mainspring.bootstrap import Engine
from mainspring.cli.options import Config, Store, settings_of
from mainspring.domain.access import DEFAULT_TENANT, ApiKey, Role
from mainspring.domain.errors import Invalid, NotFound
from mainspring.domain.instant import Instant, check_instant, format_duration, isoformat, parse_duration
from mainspring.ports.access import Access, Author
from mainspring.settings import Settings

Result = TypeVar("Result")
_ROLES = "viewer, submitter, operator, admin or worker"


def register(application: typer.Typer) -> None:
    group = typer.Typer(name="keys", help="Make, list and revoke API keys.", no_args_is_help=True)
    group.command("create")(create)
    group.command("list")(list_keys)
    group.command("revoke")(revoke)
    application.add_typer(group)


def create(
    role: Annotated[str, typer.Option("--role", help=f"{_ROLES}.")],
    name: Annotated[
        str | None, typer.Option("--name", help="What it is for; the role by default.", show_default=False)
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="The tenant it is bound to; default.", show_default=False)
    ] = None,
    all_tenants: Annotated[bool, typer.Option("--all-tenants", help="Bound to no tenant.")] = False,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", "-q", help="Only this queue; can be repeated. All without.", show_default=False),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", help="Valid for so long, such as 90d; for ever without.")
    ] = None,
    store: Store = None,
    config: Config = None,
) -> None:
    """Make a key. It is printed this once and kept nowhere; what else there is to say goes to stderr.

    Example: mainspring keys create --name ci --role submitter --tenant acme --expires 90d > ci.key
    """
    if tenant is not None and all_tenants:
        raise Invalid("--tenant", "contradicts --all-tenants")
    bound_to = None if all_tenants else DEFAULT_TENANT if tenant is None else tenant
    valid_for = None if expires is None else parse_duration(expires, "--expires")
    if valid_for == 0:
        raise Invalid("--expires", "is no time at all", "for example 90d")

    async def make(access: Access, now: Instant) -> tuple[ApiKey, str]:
        key, text = make_key(
            name=role if name is None else name,
            role=_role(role),
            tenant=bound_to,
            author=_author(),
            queues=tuple(dict.fromkeys(queue or ())),
            expires_at=None if valid_for is None else check_instant(now + valid_for, "--expires"),
        )
        return await access.put_key(key, Author(_author(), bound_to)), text

    key, text = _with_store(settings_of(None, config, store=store), make)
    typer.echo(text)
    until = "for ever" if key.expires_at is None else f"until {isoformat(key.expires_at)}"
    typer.echo(
        f"key {key.id}: {key.role.value} of {_tenant(key)}, {until}. It is not shown again.\n"
        "Send it as: Authorization: Bearer <key>",
        err=True,
    )


def list_keys(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only of this tenant.", show_default=False)] = None,
    store: Store = None,
    config: Config = None,
) -> None:
    """List keys, newest first; also those that were revoked or have expired. Their secrets are not kept."""

    async def read(access: Access, now: Instant) -> tuple[list[ApiKey], Instant]:
        return await access.keys(tenant), now

    keys, now = _with_store(settings_of(None, config, store=store), read)
    rows = [("ID", "NAME", "ROLE", "TENANT", "QUEUES", "STATE", "EXPIRES", "LAST USED")]
    rows += [
        (
            key.id,
            key.name,
            key.role.value,
            _tenant(key),
            ",".join(key.queues) or "all",
            _state(key, now),
            _day(key.expires_at),
            _day(key.last_used_at),
        )
        for key in keys
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def revoke(
    identifier: Annotated[str, typer.Argument(help="The key's id, as list shows it.", metavar="ID")],
    store: Store = None,
    config: Config = None,
) -> None:
    """End a key for good."""

    async def end(access: Access, now: Instant) -> ApiKey | None:
        return await access.revoke_key(identifier, None, Author(_author()))

    if _with_store(settings_of(None, config, store=store), end) is None:
        # Not what was given: it may be a whole key.
        raise NotFound("there is no key with this id; see: mainspring keys list")
    typer.echo(f"revoked; refused everywhere within {format_duration(REFUSED_WITHIN)}", err=True)


@asynccontextmanager
async def open_access(settings: Settings) -> AsyncIterator[tuple[Access, Instant]]:
    """The part of the store that keeps keys, and its time."""
    if settings.store == "memory:":
        raise Invalid("store", "memory: keeps nothing", "a path for SQLite, or postgresql://…")
    engine = Engine(settings)
    await engine.open()
    try:
        yield engine.store, await engine.store.now()
    finally:
        await engine.close()


def _with_store(settings: Settings, use: Callable[[Access, Instant], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        async with open_access(settings) as (access, now):
            return await use(access, now)

    return asyncio.run(run())


def _role(text: str) -> Role:
    try:
        return Role(text)
    except ValueError:
        raise Invalid("--role", f"{text!r} is no role", _ROLES) from None


def _author() -> str:
    """As the audit has it. Somebody at a shell has no key, but a login."""
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError):
        return "cli"


def _tenant(key: ApiKey) -> str:
    return "all tenants" if key.tenant is None else key.tenant


def _state(key: ApiKey, now: Instant) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and now >= key.expires_at else "valid"


def _day(instant: Instant | None) -> str:
    return "never" if instant is None else isoformat(instant)[:10]
