"""``mainspring usage`` and ``mainspring budgets``: what work has cost, and what it may cost."""

from typing import Annotated, Literal, TypeAlias

import typer
from rich.text import Text

from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, decode_answer, quote_segment
from mainspring.cli.output import Output, format_span
from mainspring.core.model.base.errors import Conflict, Invalid, NotFound
from mainspring.core.model.base.instant import SECOND
from mainspring.http.schemas.usage import BudgetOut, Budgets, Cost, UsagePage

group = typer.Typer(name="budgets", help="List, create, update and delete budgets.", no_args_is_help=True)


def register(application: typer.Typer) -> None:
    command(application, "usage")(usage)
    application.add_typer(group)


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
    found = decode_answer(answer, UsagePage)

    def show() -> None:
        numbers = ("ATTEMPTS", "WALL", "CPU")
        keys = () if by == "tenant" else (by.upper(),)
        rows = [
            (
                line.day,
                line.tenant,
                *((line.name or line.key or "(one-offs)",) if keys else ()),
                *_list_columns(line.cost),
            )
            for line in found.items
        ]
        total = ("total", "", *("" for _ in keys), *_list_columns(found.total))
        out.rows(("DAY", "TENANT", *keys, *numbers, "UNITS"), [*rows, total] if rows else [], right=numbers)
        if found.more:
            out.report("the list is incomplete: choose fewer days, or use --only")

    out.render(answer, [line.key for line in found.items], show)


@command(group, "list")
async def list_budgets(api: Client, out: Output) -> None:
    """List budgets and their current use.

    Example: mainspring budgets list
    """
    answer = await api.ask("GET", "/v1/budgets", query={"tenant": api.tenant})
    found = decode_answer(answer, Budgets).items

    def show() -> None:
        out.rows(
            ("BUDGET", "TENANT", "FOR", "USED", "THEN", "STATE"),
            [
                (
                    budget.name,
                    budget.tenant,
                    budget.of if budget.target is None else f"{budget.of} {budget.target}",
                    _format_usage(budget),
                    budget.then,
                    _format_state(budget),
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
    out.render(answer, [name], lambda: out.print(f"budget {name}: {_format_usage(decode_answer(answer, BudgetOut))}"))


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


def _list_columns(cost: Cost) -> tuple[str, ...]:
    units = ", ".join(f"{amount:,.12g} {unit}" for unit, amount in cost.units.items())
    return f"{cost.attempts:,}", _format_seconds(cost.wall_seconds), _format_seconds(cost.cpu_seconds), units


def _format_usage(budget: BudgetOut) -> str:
    return f"{budget.spent:,.12g} of {budget.limit:,.12g} {budget.unit} a {budget.period}"


def _format_state(budget: BudgetOut) -> Text:
    words = {"ok": "ok", "warned": "nearly used up", "over": "used up"}.get(budget.state, budget.state)
    words = f"{words}, paused" if budget.held else words
    return Text(words, {"warned": "yellow", "over": "red"}.get(budget.state, ""))
