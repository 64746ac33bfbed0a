"""What is done to schedules from outside."""

import asyncio
from typing import Annotated

import typer

from mainspring.bootstrap import Engine
from mainspring.cli.options import Config, Store, settings_of
from mainspring.domain.errors import NotFound
from mainspring.settings import Settings


def register(application: typer.Typer) -> None:
    application.command("cancel")(cancel)


def cancel(
    name: Annotated[str, typer.Argument(help="The schedule, as `up` shows it when it starts.", metavar="NAME")],
    tenant: Annotated[str, typer.Option("--tenant", help="Whose schedule it is.")] = "default",
    store: Store = None,
    config: Config = None,
) -> None:
    """End a schedule, and ask its runs to stop. Needed when the code names it no more: it would fire for ever.

    One that an application still declares comes back when that starts.

    Example: mainspring cancel nightly-report
    """
    asyncio.run(_cancel(settings_of(None, config, store=store), tenant, name))
    typer.echo(f"schedule {name} is cancelled")


async def _cancel(settings: Settings, tenant: str, name: str) -> None:
    engine = Engine(settings)
    await engine.open()
    try:
        job = await engine.store.job_named(tenant, name)
        if job is None:
            raise NotFound(f"there is no schedule {name!r} of tenant {tenant!r}")
        await engine.jobs.cancel_jobs([job])
    finally:
        await engine.close()
