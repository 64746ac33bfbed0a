"""``mainspring usage`` and ``mainspring budgets``: what work has cost, and what it may cost."""

from typing import Annotated, Literal, TypeAlias

import msgspec
import typer
from rich.text import Text

from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, decode_answer, quote_segment
from mainspring.cli.output import Output, format_span
from mainspring.core.model.base.errors import Conflict, Invalid, NotFound
from mainspring.core.model.base.instant import SECOND

group = typer.Typer(name="budgets", help="List, create, update and delete budgets.", no_args_is_help=True)


def register(application: typer.Typer) -> None:
    command(application, "usage")(usage)
    application.add_typer(group)


class _Cost(msgspec.Struct, rename="camel"):
    attempts: int = 0
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    units: dict[str, float] = {}

    @property
    def columns(self) -> tuple[str, ...]:
        units = ", ".join(f"{amount:,.12g} {unit}" for unit, amount in self.units.items())
        return f"{self.attempts:,}", _format_seconds(self.wall_seconds), _format_seconds(self.cpu_seconds), units


class _Line(msgspec.Struct, rename="camel"):
    day: str
    tenant: str
    key: str
    cost: _Cost
    name: str = ""


class _Usage(msgspec.Struct, rename="camel"):
    items: list[_Line]
    total: _Cost
    more: bool = False


async def usage(
    api: Client,
    out: Output,
    by: Annotated[
        Literal["job", "task", "tenant"], typer.Option("--by", help="Sum the usage by job, task or tenant.")
    ] = "task",
    since: Annotated[
        str | None, typer.Option("--since", help="Start on this day, such as 2026-01-01. Default: the last 30 days.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Stop before this day.", show_default=False)] = None,
    only: Annotated[
        str | None, typer.Option("--only", help="Only this task, tenant or job (by name or id).", show_default=False)
    ] = None,
) -> None:
    """Show usage by day: attempts, seconds of wall time and CPU, and your own units.

    Examples:

    mainspring usage --by tenant --since 2026-01-01

    mainspring usage --by job --only weekly-report --json
    """
    if by == "job" and only is not None:
        only = await api.job(only)
    query = {"by": by, "since": since, "until": until, "key": only, "tenant": api.tenant}
    answer = await api.ask("GET", "/v1/usage", query=query)
    found = decode_answer(answer, _Usage)

    def show() -> None:
        numbers = ("ATTEMPTS", "WALL", "CPU")
        keys = () if by == "tenant" else (by.upper(),)
        rows = [
            (line.day, line.tenant, *((line.name or line.key or "(one-offs)",) if keys else ()), *line.cost.columns)
            for line in found.items
        ]
        total = ("total", "", *("" for _ in keys), *found.total.columns)
        out.rows(("DAY", "TENANT", *keys, *numbers, "UNITS"), [*rows, total] if rows else [], right=numbers)
        if found.more:
            out.report("the list is incomplete: choose fewer days, or use --only")

    out.render(answer, [line.key for line in found.items], show)


class _Budget(msgspec.Struct, rename="camel"):
    name: str
    tenant: str
    unit: str
    limit: float
    period: str
    of: str
    then: str
    state: str
    spent: float
    held: bool
    target: str | None = None
    until: str | None = None

    @property
    def usage(self) -> str:
        return f"{self.spent:,.12g} of {self.limit:,.12g} {self.unit} a {self.period}"

    @property
    def state_text(self) -> Text:
        words = {"ok": "ok", "warned": "nearly used up", "over": "used up"}.get(self.state, self.state)
        words = f"{words}, paused" if self.held else words
        return Text(words, {"warned": "yellow", "over": "red"}.get(self.state, ""))


class _Budgets(msgspec.Struct):
    items: list[_Budget]


@command(group, "list")
async def list_budgets(api: Client, out: Output) -> None:
    """List budgets and their current use.

    Example: mainspring budgets list
    """
    answer = await api.ask("GET", "/v1/budgets", query={"tenant": api.tenant})
    found = decode_answer(answer, _Budgets).items

    def show() -> None:
        out.rows(
            ("BUDGET", "TENANT", "FOR", "USED", "THEN", "STATE"),
            [
                (
                    budget.name,
                    budget.tenant,
                    budget.of if budget.target is None else f"{budget.of} {budget.target}",
                    budget.usage,
                    budget.then,
                    budget.state_text,
                )
                for budget in found
            ],
            empty="no budgets; to create one: mainspring budgets create NAME --unit wall --limit 3600",
        )

    out.render(answer, [budget.name for budget in found], show)


Name: TypeAlias = Annotated[str, typer.Argument(help="The name of the budget.", metavar="NAME")]
Job: TypeAlias = Annotated[
    str | None, typer.Option("--job", help="Limit this job, by name, instead of the tenant.", show_default=False)
]
Task: TypeAlias = Annotated[
    str | None, typer.Option("--task", help="Limit this task instead of the tenant.", show_default=False)
]


@command(group, "create")
async def create_budget(
    api: Client,
    out: Output,
    name: Name,
    unit: Annotated[str, typer.Option("--unit", help="wall or cpu (seconds), attempts, or a unit of your own.")],
    limit: Annotated[float, typer.Option("--limit", help="The limit of one period.")],
    period: Annotated[Literal["day", "month"], typer.Option("--period", help="A day or a month, in UTC.")] = "month",
    job: Job = None,
    task: Task = None,
    warn_at: Annotated[float, typer.Option("--warn-at", help="Warn at this fraction of the limit.")] = 0.8,
    then: Annotated[
        Literal["warn", "lower", "pause"],
        typer.Option(
            "--then", help="The action when the budget is used up, until the period ends. A task cannot be paused."
        ),
    ] = "warn",
) -> None:
    """Create a budget.

    Examples:

    mainspring budgets create tokens --unit tokens --limit 1000000 --then lower

    mainspring budgets create nightly --unit wall --limit 7200 --period day --job nightly-report --then pause
    """
    existing = await _find_budget(api, name)
    if existing is not None:
        owner = existing["tenant"]
        raise Conflict(f"tenant {owner} has a budget {name}; to change it: mainspring budgets update {name}")
    body = {
        "unit": unit,
        "limit": limit,
        "period": period,
        **(_choose_target(job, task) or {"of": "tenant"}),
        "warnAt": warn_at,
        "then": then,
    }
    await _put_budget(api, out, name, {**body, "tenant": api.tenant})


@command(group, "update")
async def update_budget(
    api: Client,
    out: Output,
    name: Name,
    unit: Annotated[
        str | None,
        typer.Option("--unit", help="wall or cpu (seconds), attempts, or a unit of your own.", show_default=False),
    ] = None,
    limit: Annotated[float | None, typer.Option("--limit", help="The limit of one period.", show_default=False)] = None,
    period: Annotated[
        Literal["day", "month"] | None, typer.Option("--period", help="A day or a month, in UTC.", show_default=False)
    ] = None,
    job: Job = None,
    task: Task = None,
    warn_at: Annotated[
        float | None, typer.Option("--warn-at", help="Warn at this fraction of the limit.", show_default=False)
    ] = None,
    then: Annotated[
        Literal["warn", "lower", "pause"] | None,
        typer.Option("--then", help="The action when the budget is used up.", show_default=False),
    ] = None,
) -> None:
    """Change a budget; options that you omit keep their values.

    Example: mainspring budgets update tokens --limit 2000000
    """
    given = {"unit": unit, "limit": limit, "period": period, "warnAt": warn_at, "then": then}
    changes: dict[str, object] = {field: value for field, value in given.items() if value is not None}
    changes.update(_choose_target(job, task))
    if not changes:
        raise Invalid("--limit", "no change given", "for example --limit 2000000")
    current = await _find_budget(api, name)
    if current is None:
        raise NotFound(f"there is no budget {name!r:.80}; see: mainspring budgets list")
    kept = {
        field: current.get(field) for field in ("unit", "limit", "period", "of", "target", "warnAt", "then", "tenant")
    }
    await _put_budget(api, out, name, {**kept, **changes})


def _choose_target(job: str | None, task: str | None) -> dict[str, object]:
    if job is not None and task is not None:
        raise Invalid("--job", "contradicts --task", "one of the two")
    if job is not None:
        return {"of": "job", "target": job}
    return {"of": "task", "target": task} if task is not None else {}


async def _find_budget(api: Client, name: str) -> dict[str, object] | None:
    answer = await api.ask("GET", "/v1/budgets", query={"tenant": api.tenant})
    items = decode_answer(answer, dict[str, list[dict[str, object]]])["items"]
    named = [item for item in items if item["name"] == name]
    if len(named) > 1:
        tenants = ", ".join(sorted(str(item["tenant"]) for item in named))
        raise Invalid("budget", f"{name!r:.80} is the name of {len(named)} budgets", f"--tenant, one of {tenants}")
    return named[0] if named else None


async def _put_budget(api: Client, out: Output, name: str, body: dict[str, object]) -> None:
    path = f"/v1/budgets/{quote_segment(name)}"
    answer = await api.ask("PUT", path, body=body, repeatable=True)
    out.render(answer, [name], lambda: out.print(f"budget {name}: {decode_answer(answer, _Budget).usage}"))


@command(group, "delete")
async def delete_budget(api: Client, out: Output, name: Name) -> None:
    """Delete a budget; what is paused because of it resumes.

    Example: mainspring budgets delete tokens
    """
    answer = await api.ask(
        "DELETE", f"/v1/budgets/{quote_segment(name)}", query={"tenant": api.tenant}, repeatable=True
    )
    out.render(answer, [name], lambda: out.print(f"budget {name} deleted"))


def _format_seconds(seconds: float) -> str:
    return format_span(round(seconds * SECOND)) if seconds else ""
