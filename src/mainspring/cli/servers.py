"""``mainspring store``: the servers of a sharded store, and the placement groups of each."""

import asyncio
from typing import Annotated

import msgspec
import typer

from mainspring.cli.client.command import Profile
from mainspring.cli.client.target import store_settings
from mainspring.cli.options import Config, Store
from mainspring.cli.output import AsJson, build_table, echo_json, make_console
from mainspring.config.settings import Settings
from mainspring.config.stores import open_sharded


class MoveOut(msgspec.Struct, frozen=True, kw_only=True):
    """A placement group that was moved, or would be."""

    placement_group: int
    source: int
    target: int


def register(application: typer.Typer) -> None:
    group = typer.Typer(help="The servers of a sharded store.", no_args_is_help=True)
    group.command("show")(show)
    group.command("rebalance")(rebalance)
    application.add_typer(group, name="store")


def show(profile: Profile = None, store: Store = None, config: Config = None, json: AsJson = False) -> None:
    """Show the servers of the store, and the number of placement groups on each.

    Example: mainspring store show
    """
    found = asyncio.run(_read_servers(store_settings(profile, store, config)))
    if json:
        echo_json(found)
        return
    shown = build_table("SERVER", "ADDRESS", "STATE", "GROUPS", "LEAVING")
    for server in found:
        state = "unavailable" if server.away else "available"
        leaving = ", ".join(map(str, server.leaving))
        shown.add_row(str(server.number), server.address, state, str(len(server.placement_groups)), leaving)
    make_console().print(shown)


async def _read_servers(settings: Settings):  # type: ignore[no-untyped-def]
    async with open_sharded(settings) as store:
        return await store.servers()


def rebalance(
    without: Annotated[
        int | None, typer.Option("--without", help="Empty the server with this number.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the moves, and move nothing.")] = False,
    profile: Profile = None,
    store: Store = None,
    config: Config = None,
    json: AsJson = False,
) -> None:
    """Move placement groups until every server has equally many. Moves that were interrupted are finished first.

    The store stays available. While a group is moved, its tenants get "try again". All processes must first have all
    servers in their settings. You can interrupt the command and start it again at any time.

    Examples:

    mainspring store rebalance --dry-run

    mainspring store rebalance --without 0
    """
    settings = store_settings(profile, store, config)
    moves = asyncio.run(_rebalance(settings, without, dry_run=dry_run, quiet=json))
    if json:
        echo_json(moves)
    elif not moves:
        typer.echo("nothing to move")
    else:
        typer.echo(f"{len(moves)} placement groups {'would be moved' if dry_run else 'moved'}")


async def _rebalance(settings: Settings, without: int | None, *, dry_run: bool, quiet: bool) -> list[MoveOut]:
    async with open_sharded(settings) as store:
        moves = await store.planned_moves(without)
        for number, (group, source, target) in enumerate(moves, 1):
            if not dry_run:
                await store.move_placement_group(group, source, target)
            if not quiet:
                typer.echo(f"{number}/{len(moves)}: placement group {group} from server {source} to {target}")
        return [MoveOut(placement_group=group, source=source, target=target) for group, source, target in moves]
