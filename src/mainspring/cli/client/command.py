"""Makes commands of coroutine functions: they get a client and an output, and the options for both."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, TypeAlias

import typer

from mainspring.cli.client import profiles
from mainspring.cli.output import Output

if TYPE_CHECKING:
    pass
from mainspring.cli.client.target import Client, P, choose_target, connect

_TARGET = "Target"
_OUTPUT = "Output"
Profile: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--profile",
        help="Use the API or store of this profile (or set MAINSPRING_PROFILE).",
        rich_help_panel=_TARGET,
        autocompletion=profiles.names,
        show_default=False,
    ),
]
Url: TypeAlias = Annotated[
    str | None,
    typer.Option("--url", help="Use this API (or set MAINSPRING_URL).", rich_help_panel=_TARGET, show_default=False),
]
Key: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--key",
        help="The API key. Prefer MAINSPRING_KEY or a profile: other users of this machine can see options.",
        rich_help_panel=_TARGET,
        show_default=False,
    ),
]
StoreOf: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Open this store directly, without an API: a path for SQLite, or postgresql://…",
        rich_help_panel=_TARGET,
        show_default=False,
    ),
]
ConfigOf: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Use the store in this settings file. Default: ./mainspring.toml.",
        rich_help_panel=_TARGET,
        show_default=False,
    ),
]
Tenant: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        help="Limit to one tenant. Default: every tenant that you can access.",
        rich_help_panel=_TARGET,
        show_default=False,
    ),
]
Json: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print the API's JSON on stdout, and nothing else.", rich_help_panel=_OUTPUT)
]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", help="Print only ids, one per line.", rich_help_panel=_OUTPUT)
]
Utc: TypeAlias = Annotated[
    bool, typer.Option("--utc", help="Print times in UTC instead of relative times.", rich_help_panel=_OUTPUT)
]
Watch: TypeAlias = Annotated[
    bool, typer.Option("--watch", help="Print the output again every 2 s, until Ctrl-C.", rich_help_panel=_OUTPUT)
]
#: Commands that only read, and whose output changes while runs are executed.
_WATCHABLE = ("list", "show")


def command(
    group: typer.Typer, name: str, *, makes_store: bool = False
) -> Callable[[Callable[Concatenate[Client, Output, P], Awaitable[None]]], Callable[..., None]]:
    """Decorate a coroutine function as a command. It gets the client and the output, and the options for both."""

    def register(function: Callable[Concatenate[Client, Output, P], Awaitable[None]]) -> Callable[..., None]:
        # Typer has validated the arguments.
        called: Callable[..., Awaitable[None]] = function

        def run(
            profile: str | None,
            url: str | None,
            key: str | None,
            store: str | None,
            config: Path | None,
            tenant: str | None,
            json: bool,
            quiet: bool,
            utc: bool,
            repeated: bool = False,
            **own: Any,
        ) -> None:
            target = choose_target(profile, url, key, store, config, tenant)

            async def execute() -> None:
                async with connect(target, makes_store=makes_store) as api:
                    out = Output(as_json=json, quiet=quiet, utc=utc, now=api.clock.now)
                    if repeated:
                        await out.watch(lambda: called(api, out, **own), api.clock)
                    else:
                        await called(api, out, **own)

            asyncio.run(execute())

        _, _, *own = inspect.signature(function).parameters.values()
        shared = [
            _option("profile", Profile, None),
            _option("url", Url, None),
            _option("key", Key, None),
            _option("store", StoreOf, None),
            _option("config", ConfigOf, None),
            _option("tenant", Tenant, None),
            _option("json", Json, False),
            _option("quiet", Quiet, False),
            _option("utc", Utc, False),
            *([_option("repeated", Watch, False)] if name in _WATCHABLE else []),
        ]
        assert not {one.name for one in own} & set(inspect.signature(run).parameters), f"{name} has an option of all"
        parameters = [*own, *shared]
        setattr(run, "__signature__", inspect.Signature(parameters))  # noqa: B010
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__doc__ = function.__doc__
        run.__name__ = getattr(function, "__name__", name)
        group.command(name)(run)
        return run

    return register


def _option(name: str, annotation: object, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
