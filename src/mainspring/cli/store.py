"""Commands that change the store itself: migrate its schema, promote a standby."""

import asyncio
from typing import Annotated

import typer

from mainspring.cli.client.command import Profile
from mainspring.cli.client.target import store_settings
from mainspring.cli.options import Config, Store
from mainspring.cli.output import AsJson, echo_json
from mainspring.config.backups import promote_standby
from mainspring.config.health import migrate as migrate_store
from mainspring.core.model.base.instant import SECOND, isoformat
from mainspring.core.ports.upkeep.schema import MigrationKind

_MEANS = {
    MigrationKind.EXPAND: "programs of the previous version keep working",
    MigrationKind.CONTRACT: "what older programs used is gone",
    MigrationKind.BREAKING: "older programs cannot use this schema",
}


def register(application: typer.Typer) -> None:
    application.command("migrate")(migrate)
    application.command("promote")(promote)


def migrate(
    profile: Profile = None,
    store: Store = None,
    config: Config = None,
    json: AsJson = False,
    contract: Annotated[
        bool, typer.Option("--contract", help="Also remove what only older programs use, once they are gone.")
    ] = False,
) -> None:
    """Bring the store's schema up to date. Every process does this when it starts; this command does it beforehand.

    It prints what each migration means for running programs. Contract migrations, which remove what only older programs
    use, wait for --contract. That is refused while one of those programs is alive.

    Examples:

    mainspring migrate

    mainspring migrate --contract --store postgresql://me@db.example.org/jobs
    """
    done = asyncio.run(migrate_store(store_settings(profile, store, config), contract=contract))
    if json:
        echo_json(done)
        return
    for migration in done.applied:
        typer.echo(f"{migration.name}: {migration.kind}: {_MEANS[migration.kind]}")
    for migration in done.waiting:
        typer.echo(f"{migration.name}: waits for --contract: programs that do not know {migration.needs} still use it")
    typer.echo("the schema is up to date")


def promote(
    address: Annotated[
        str, typer.Argument(help="The standby, as a role that may promote it: postgresql://…", metavar="ADDRESS")
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Promote even if the old primary still writes, or cannot be reached.")
    ] = False,
    profile: Profile = None,
    store: Store = None,
    config: Config = None,
    json: AsJson = False,
) -> None:
    """Make a standby the primary, when the region of the old one is lost.

    It refuses while the old primary may still work: another server of the store's address still writes, or the server
    that the standby follows still sends to it. It also refuses if no such server can be checked; name both servers in
    --store. Fences of the new primary are greater than all that the old one may have issued, and the audit log records
    the promotion. Processes whose address names both servers reconnect by themselves. It is safe to repeat.

    Example: mainspring promote postgresql://postgres@far.example.org/jobs
    """
    done = asyncio.run(promote_standby(store_settings(profile, store, config), address, force=force))
    if json:
        echo_json(done)
        return
    typer.echo(f"{done.address} is the primary after {done.took / SECOND:.1f} s, with epoch {done.epoch}")
    if done.last_commit is not None:
        typer.echo(f"the last commit that it has of the old one is of {isoformat(done.last_commit)}")
    if done.waits_for:
        typer.echo(
            f"every commit waits for {done.waits_for}, which is not there: ALTER SYSTEM RESET synchronous_standby_names"
        )
