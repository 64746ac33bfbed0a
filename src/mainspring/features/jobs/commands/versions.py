"""``mainspring jobs versions``, ``diff`` and ``restore``: the versions of a recurring job."""

from typing import Annotated, TypeAlias

import msgspec
import typer
from rich.text import Text

from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, decode_answer
from mainspring.cli.output import Output
from mainspring.features.jobs.commands.group import Job, group
from mainspring.http.schemas.differences import Change

Limit: TypeAlias = Annotated[int, typer.Option("--limit", "-n", min=1, max=100, help="The maximum number of versions.")]


class Version(msgspec.Struct, rename="camel"):
    version: int
    made_by: str
    made_at: str
    why: str = ""
    changes: dict[str, Change] = {}


class _Diff(msgspec.Struct):
    changes: dict[str, Change] = {}


class _Restored(msgspec.Struct):
    version: int


def register(application: typer.Typer) -> None:
    """Do nothing: importing this module adds the commands to the group of ``jobs``."""


@command(group, "versions")
async def versions(api: Client, out: Output, job: Job, limit: Limit = 20) -> None:
    """List the versions of a recurring job, newest first: who changed what, and why.

    Example: mainspring jobs versions weekly-report
    """
    found = await api.pages(f"/v1/jobs/{await api.job(job)}/versions", {}, limit)
    found_versions = [decode_answer(item, Version) for item in found.items]

    def show() -> None:
        out.rows(
            ("VERSION", "BY", "MADE", "CHANGED", "WHY"),
            [
                (str(one.version), one.made_by, out.time(one.made_at), ", ".join(sorted(one.changes)), one.why)
                for one in found_versions
            ],
            right=("VERSION",),
        )

    out.render(found, [str(one.version) for one in found_versions], show)


@command(group, "diff")
async def diff(
    api: Client,
    out: Output,
    job: Job,
    older: Annotated[
        int | None, typer.Argument(help="The older version.", metavar="[FROM]", show_default=False)
    ] = None,
    newer: Annotated[int | None, typer.Argument(help="The newer one.", metavar="[TO]", show_default=False)] = None,
) -> None:
    """Compare two versions of a job; by default the newest and the one before it.

    Examples:

    mainspring jobs diff weekly-report

    mainspring jobs diff weekly-report 2 5
    """
    found = await api.ask("GET", f"/v1/jobs/{await api.job(job)}/diff", query={"from": older, "to": newer})
    changes = decode_answer(found, _Diff).changes

    def show() -> None:
        for field, change in changes.items():
            out.print(Text(f"{field}: ", "bold") + _summarize(change))
        if not changes:
            out.report("no differences")

    out.render(found, changes, show)


@command(group, "restore")
async def restore(
    api: Client,
    out: Output,
    job: Job,
    version: Annotated[int, typer.Argument(help="The version to restore.", min=1, metavar="VERSION")],
    why: Annotated[str, typer.Option("--why", help="The reason, kept with the version.", show_default=False)] = "",
) -> None:
    """Restore an old version of a job as its newest version. The versions in between stay in its history.

    Example: mainspring jobs restore weekly-report 3 --why "the new time was wrong"
    """
    body = {"why": why} if why else {}
    identifier = await api.job(job)
    restored = await api.ask("POST", f"/v1/jobs/{identifier}/versions/{version}/restore", body=body)
    new = decode_answer(restored, _Restored).version
    out.render(restored, [identifier], lambda: out.print(f"job {job} has version {new}, a copy of version {version}"))


def _summarize(change: Change) -> Text:
    if change.before is msgspec.UNSET or change.after is msgspec.UNSET:
        return Text(f"{change.bytes_before or 0} bytes → {change.bytes_after or 0} bytes")
    return Text(bytes(change.before).decode(), "red") + " → " + Text(bytes(change.after).decode(), "green")
