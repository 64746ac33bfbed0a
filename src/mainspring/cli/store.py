"""What is done to the store itself."""

import asyncio

import typer

from mainspring.bootstrap import migrate as migrate_store
from mainspring.cli.options import Config, Store
from mainspring.cli.target import Profile, store_settings


def register(application: typer.Typer) -> None:
    application.command("migrate")(migrate)


def migrate(profile: Profile = None, store: Store = None, config: Config = None) -> None:
    """Bring the store's schema up to date. Every process does this at its start; here it is done beforehand."""
    asyncio.run(migrate_store(store_settings(profile, store, config)))
    typer.echo("the schema is up to date")
