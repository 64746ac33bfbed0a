"""``mainspring tenants``: list and create tenants, and change their retention."""

from typing import Annotated, TypeAlias

import msgspec
import typer

from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, ItemPage, decode_answer
from mainspring.cli.output import Output
from mainspring.core.model.base.errors import Conflict, Invalid, NotFound
from mainspring.core.model.runs.retention import CLASSES, check_class
from mainspring.features.access.schemas import QuotasIn, TenantOut

group = typer.Typer(name="tenants", help="List and create tenants, and change their retention.", no_args_is_help=True)

TenantName: TypeAlias = Annotated[str, typer.Argument(help="The name of the tenant.", metavar="NAME")]
Retention: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--retention",
        help=f"The retention class of runs that choose none: {', '.join(CLASSES)}.",
        metavar="CLASS",
        show_default=False,
    ),
]


def register(application: typer.Typer) -> None:
    application.add_typer(group)


@command(group, "list")
async def list_tenants(api: Client, out: Output) -> None:
    """List tenants.

    Example: mainspring tenants list
    """
    answer = decode_answer(await api.ask("GET", "/v1/tenants"), ItemPage)
    tenants = [decode_answer(item, TenantOut) for item in answer.items]

    def show() -> None:
        out.rows(
            ("TENANT", "RETENTION", "QUOTAS"),
            [
                (
                    tenant.name,
                    tenant.retention,
                    ", ".join(f"{name} {most}" for name, most in msgspec.to_builtins(tenant.quotas).items()),
                )
                for tenant in tenants
            ],
        )

    out.render({"items": answer.items}, [tenant.name for tenant in tenants], show)


@command(group, "create")
async def create_tenant(api: Client, out: Output, name: TenantName, retention: Retention = None) -> None:
    """Create a tenant.

    Examples:

    mainspring tenants create acme

    mainspring tenants create bank --retention audit
    """
    if await _find(api, name) is not None:
        raise Conflict(f"tenant {name} exists; to change it: mainspring tenants update {name}")
    await _put(api, out, name, QuotasIn(), retention)


@command(group, "update")
async def update_tenant(api: Client, out: Output, name: TenantName, retention: Retention = None) -> None:
    """Change the retention class of a tenant's runs that choose none. Applies to runs created from now on.

    Example: mainspring tenants update bank --retention audit
    """
    if retention is None:
        raise Invalid("--retention", "no change given", f"one of {', '.join(CLASSES)}")
    tenant = await _find(api, name)
    if tenant is None:
        raise NotFound(f"there is no tenant {name!r:.80}; to create it: mainspring tenants create {name}")
    await _put(api, out, name, tenant.quotas, retention)


async def _find(api: Client, name: str) -> TenantOut | None:
    known = decode_answer(await api.ask("GET", "/v1/tenants"), ItemPage)
    return next((item for item in (decode_answer(item, TenantOut) for item in known.items) if item.name == name), None)


async def _put(api: Client, out: Output, name: str, quotas: QuotasIn, retention: str | None) -> None:
    body: dict[str, object] = {"name": name, "quotas": quotas}
    if retention is not None:
        check_class("--retention", retention or " ")
        body["retention"] = retention
    answer = await api.ask("PUT", "/v1/tenants", body=body)
    out.render(
        answer,
        [name],
        lambda: out.print(f"tenant {name}; default retention: {decode_answer(answer, TenantOut).retention}"),
    )


def _format_quotas(quotas: QuotasIn) -> str:
    return ", ".join(f"{name} {most}" for name, most in msgspec.to_builtins(quotas).items())
