"""``mainspring tenants``: list tenants and set their retention."""

from typing import Annotated

import msgspec
import typer

from mainspring.cli.client.target import Client, ItemPage, command, decode_answer
from mainspring.cli.output import Output
from mainspring.core.model.runs.retention import CLASSES, check_class

group = typer.Typer(name="tenants", help="List tenants and set their retention.", no_args_is_help=True)


def register(application: typer.Typer) -> None:
    application.add_typer(group)


class Tenant(msgspec.Struct, rename="camel"):
    name: str
    quotas: dict[str, int | None]
    retention: str = "standard"


@command(group, "list")
async def list_tenants(api: Client, out: Output) -> None:
    """List tenants.

    Example: mainspring tenants list
    """
    answer = decode_answer(await api.ask("GET", "/v1/tenants"), ItemPage)
    tenants = [decode_answer(item, Tenant) for item in answer.items]

    def show() -> None:
        out.rows(
            ("TENANT", "RETENTION", "QUOTAS"),
            [
                (tenant.name, tenant.retention, ", ".join(f"{name} {most}" for name, most in tenant.quotas.items()))
                for tenant in tenants
            ],
        )

    out.tell({"items": answer.items}, [tenant.name for tenant in tenants], show)


@command(group, "set")
async def set_tenant(
    api: Client,
    out: Output,
    name: Annotated[str, typer.Argument(help="The tenant.", show_default=False)],
    retention: Annotated[
        str | None,
        typer.Option("--retention", help=f"Retention of runs without a class of their own: {', '.join(CLASSES)}."),
    ] = None,
) -> None:
    """Create a tenant, or set the retention of its runs that choose no class. Applies to runs created from now on.

    Examples:

    mainspring tenants set acme

    mainspring tenants set bank --retention audit
    """
    if retention is not None:
        check_class("--retention", retention or " ")
    known = decode_answer(await api.ask("GET", "/v1/tenants"), ItemPage)
    tenant = next((item for item in (decode_answer(item, Tenant) for item in known.items) if item.name == name), None)
    body: dict[str, object] = {"name": name, "quotas": {} if tenant is None else tenant.quotas}
    if retention is not None:
        body["retention"] = retention
    answer = await api.ask("PUT", "/v1/tenants", body=body)
    kept = "" if retention is None else f"; its default retention is {retention}"
    out.tell(answer, [name], lambda: out.note(f"{'changed' if tenant else 'created'} tenant {name}{kept}"))
