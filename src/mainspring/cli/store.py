"""What is done to the store itself."""

import asyncio

import typer

from mainspring.bootstrap import migrate as migrate_store
from mainspring.cli.options import Config, Store, settings_of


def register(application: typer.Typer) -> None:
    application.command("migrate")(migrate)


def migrate(store: Store = None, config: Config = None) -> None:
    """Bring the store's schema up to date. Every process does this at its start; here it is done beforehand."""
    settings = settings_of(None, config, store=store)
    asyncio.run(migrate_store(settings))
    typer.echo("the schema is up to date")
