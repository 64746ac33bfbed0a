"""``mainspring plan`` and ``mainspring apply``: compare declared schedules with stored ones, and make them equal."""

import asyncio
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from mainspring.cli.client.command import ConfigOf, Key, Profile, StoreOf, Url
from mainspring.cli.client.target import Client, Target, choose_target, connect, decode_answer
from mainspring.cli.exits import PARTLY
from mainspring.cli.options import Application, load_application, load_module, load_settings
from mainspring.cli.output import AsJson, echo_json, make_console
from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.runs.names import check_name
from mainspring.sdk.app import Mainspring

if TYPE_CHECKING:
    from mainspring.features.schedules.operations import ReconcileOut, StepOut
    from mainspring.http.schemas.jobs import JobFields

#: The exit code of ``plan`` if there are steps to apply.
HAS_CHANGES = 3
_SIGNS = {"add": ("+", "green"), "change": ("~", "yellow"), "take over": ("!", "magenta"), "remove": ("-", "red")}
_WORDS = {"add": "to add", "change": "to change", "take over": "to take over", "remove": "to remove"}
_DONE = {"add": "added", "change": "changed", "take over": "taken over", "remove": "removed"}

File: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "-f", "--file", help="A schedules file instead of an application: YAML, JSON or TOML.", show_default=False
    ),
]
SourceName: TypeAlias = Annotated[
    str | None,
    typer.Option("--name", help="The name of the source. Default: the name of the file.", show_default=False),
]
TenantOf: TypeAlias = Annotated[
    str | None, typer.Option("--tenant", help="The tenant of the schedules of a file.", show_default=False)
]


class Declaration(msgspec.Struct, frozen=True):
    """All schedules of one source."""

    source: str
    schedules: "Sequence[JobFields]"
    #: ``None``: the tenant of the key or the profile.
    tenant: str | None
    application: Mainspring | None = None


def register(application: typer.Typer) -> None:
    application.command("plan")(plan)
    application.command("apply")(apply)


def plan(
    app: Application = None,
    file: File = None,
    name: SourceName = None,
    tenant: TenantOf = None,
    profile: Profile = None,
    url: Url = None,
    key: Key = None,
    store: StoreOf = None,
    config: ConfigOf = None,
    json: AsJson = False,
) -> None:
    """Show what apply would do: the schedules it would add, change and remove. Nothing is changed.

    Exits with 0 if there is nothing to do and with 3 if there is, so that a pipeline can report drift.

    Examples:

    mainspring plan tasks:app

    mainspring plan -f schedules.yaml --url https://jobs.example.org --json
    """
    declared = _read_declaration(app, file, name, tenant)
    target = _choose_target(declared, profile, url, key, store, config)

    async def work() -> "ReconcileOut":
        async with connect(target) as client:
            return await _request(client, declared)

    found = asyncio.run(work())
    if json:
        echo_json(found)
    else:
        _show_plan(make_console(), found)
    if found.steps:
        raise typer.Exit(HAS_CHANGES)


def apply(
    app: Application = None,
    file: File = None,
    name: SourceName = None,
    tenant: TenantOf = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Remove schedules, and take them over from another source, without asking."),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse schedules that no live worker can run, instead of warning.")
    ] = False,
    profile: Profile = None,
    url: Url = None,
    key: Key = None,
    store: StoreOf = None,
    config: ConfigOf = None,
    json: AsJson = False,
) -> None:
    """Apply the schedules of the code or the file to the store: add, change and remove them.

    Additions and changes are applied at once. Two steps need --yes, or your answer at a terminal: cancelling schedules
    that are no longer declared, and taking over schedules of another source. Without it they are skipped, and the exit
    status is 3. Schedules that were created by hand are never removed.

    Examples:

    mainspring apply tasks:app

    mainspring apply -f schedules.yaml --yes
    """
    declared = _read_declaration(app, file, name, tenant)
    target = _choose_target(declared, profile, url, key, store, config)

    async def work() -> "ReconcileOut":
        async with connect(target, makes_store=True) as client:
            found = await _request(client, declared)
            if not json:
                _show_plan(make_console(), found)
            if not found.steps:
                return found
            return await _request(
                client, declared, apply_now=True, confirmed=yes or _confirm(found.steps, json), strict=strict
            )

    done = asyncio.run(work())
    skipped = [step for step in done.steps if not step.done]
    if json:
        echo_json(done)
    elif done.steps:
        typer.echo(_count_actions(step for step in done.steps if step.done) or "no changes")
    if skipped:
        names = ", ".join(step.name for step in skipped)
        typer.echo(f"mainspring: warning: {len(skipped)} not changed: {names} (--yes)", err=True)
        raise typer.Exit(PARTLY)


def _read_declaration(app: str | None, file: Path | None, name: str | None, tenant: str | None) -> Declaration:
    if (app is None) == (file is None):
        raise Invalid("application", "give either an application or -f FILE", "for example mainspring plan tasks:app")
    if app is not None:
        for option, value in (("--name", name), ("--tenant", tenant)):
            if value is not None:
                raise Invalid(option, "requires -f", "an application sets it in its code")
        loaded = load_application(app)
        _check_unique_name(app, loaded)
        from mainspring.http.rendering.jobs import read_spec_fields

        # Send every field: the code sets the options of its own tasks.
        given = [read_spec_fields(spec, payload) for spec, payload in loaded.schedules()]
        return Declaration(loaded.source, given, loaded.tenant, loaded)
    assert file is not None
    from mainspring.features.schedules import file as schedule_file

    source = f"file:{check_name('--name', name or file.name)}"
    return Declaration(source, schedule_file.read_file(file), tenant)


def _check_unique_name(path: str, app: Mainspring) -> None:
    """Refuse two applications of the same name: each would remove the schedules of the other."""
    module = load_module(path.partition(":")[0], "application")
    others = [other for other in vars(module).values() if isinstance(other, Mainspring) and other is not app]
    if any(other.name == app.name and other.tenant == app.tenant for other in others):
        raise Conflict(f"{module.__name__} has two applications called {app.name!r}; give each a name: name=…")


def _choose_target(
    declared: Declaration, profile: str | None, url: str | None, key: str | None, store: str | None, config: Path | None
) -> Target:
    target = choose_target(profile, url, key, store, config, declared.tenant)
    if target.settings is None or profile is not None or declared.application is None:
        return target
    # The store that the code names counts, unless an option names another.
    return Target(settings=load_settings(declared.application, config, store=store), tenant=declared.tenant)


async def _request(
    client: Client, declared: Declaration, *, apply_now: bool = False, confirmed: bool = False, strict: bool = False
) -> "ReconcileOut":
    from mainspring.features.schedules.operations import ReconcileOut
    from mainspring.sdk.reconcile import PATH, build_request

    body = build_request(declared.source, client.tenant, declared.schedules)
    if apply_now:
        body = msgspec.structs.replace(body, dry_run=False, remove=confirmed, take_over=confirmed, strict=strict)
    # Safe to repeat: a second request finds the steps applied.
    return decode_answer(await client.ask("POST", PATH, body=body, repeatable=True), ReconcileOut)


def _confirm(steps: Sequence["StepOut"], json: bool) -> bool:
    """Return whether removals and takeovers are confirmed."""
    affected = [step for step in steps if step.action in ("remove", "take over")]
    if not affected or json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    return typer.confirm(f"Really {', '.join(f'{step.action} {step.name}' for step in affected)}?", err=True)


def _show_plan(out: Console, found: "ReconcileOut") -> None:
    for step in found.steps:
        sign, colour = _SIGNS[step.action]
        out.print(Text(f"{sign} {step.name}", colour), Text(f"task {step.task}" if step.action == "add" else ""))
        for field, change in step.changes.items():
            out.print(Text(f"    {field}: {_format_value(change.before)} → {_format_value(change.after)}"))
    for warning in found.warnings:
        typer.echo(f"mainspring: warning: {warning}", err=True)
    summary = _count_actions(found.steps, _WORDS)
    out.print(f"{found.source}: {summary or 'nothing to do'}; {len(found.unchanged)} unchanged")


def _count_actions(steps: "Iterable[StepOut]", words: dict[str, str] = _DONE) -> str:
    actions = [step.action for step in steps]
    return ", ".join(f"{actions.count(action)} {word}" for action, word in words.items() if action in actions)


def _format_value(raw: msgspec.Raw | msgspec.UnsetType) -> str:
    if isinstance(raw, msgspec.UnsetType):
        return "(large value)"
    text = bytes(raw).decode()
    return "nothing" if text == "null" else text
