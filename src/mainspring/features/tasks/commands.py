"""``mainspring tasks``: the tasks that workers have registered."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import typer

from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, decode_answer, name_missing, quote_segment
from mainspring.cli.output import Output, print_details

group = typer.Typer(
    name="tasks",
    help="The tasks that workers have registered, with their options and arguments.",
    no_args_is_help=True,
)


def register(application: typer.Typer) -> None:
    application.add_typer(group)


class Task(msgspec.Struct, rename="camel"):
    name: str
    description: str
    queue: str
    priority: int
    max_retries: int
    timeout: str
    preset: str | None
    guarantee: str
    requires: dict[str, str]
    limits: list[dict[str, Any]]
    breaker: dict[str, Any] | None
    weight: int
    retention: str | None
    tags: list[str]
    version: int
    registered_by: str
    registered_at: str
    workers: int
    arguments: dict[str, Any] = {}


class _TaskList(msgspec.Struct):
    items: list[Task]


@command(group, "list")
async def list_tasks(
    api: Client,
    out: Output,
    text: Annotated[
        str | None, typer.Option("--text", help="A part of the name or the description.", show_default=False)
    ] = None,
) -> None:
    """List the tasks that workers have registered, with the options that jobs start from.

    Example: mainspring tasks list
    """
    answer = await api.ask("GET", "/v1/tasks", query={"text": text})
    found = decode_answer(answer, _TaskList).items

    def show() -> None:
        out.rows(
            ("TASK", "QUEUE", "PRIORITY", "RETRIES", "TIMEOUT", "WORKERS", "REGISTERED", "DESCRIPTION"),
            [
                (
                    task.name,
                    task.queue,
                    str(task.priority),
                    str(task.max_retries),
                    task.timeout,
                    str(task.workers),
                    out.time(task.registered_at),
                    task.description.partition("\n")[0],
                )
                for task in found
            ],
            right=("PRIORITY", "RETRIES", "WORKERS"),
        )

    out.render(answer, [task.name for task in found], show)


@command(group, "show")
async def show_task(
    api: Client, out: Output, name: Annotated[str, typer.Argument(help="The name of the task.", metavar="NAME")]
) -> None:
    """Show a task: its options, its arguments, and which worker registered it.

    Examples:

    mainspring tasks show send_welcome

    mainspring tasks show send_welcome --json
    """
    with name_missing("task", name):
        answer = await api.ask("GET", f"/v1/tasks/{quote_segment(name)}")
    task = decode_answer(answer, Task)
    out.render(answer, [task.name], lambda: _show_details(out, task))


def _show_details(out: Output, task: Task) -> None:
    print_details(
        out,
        [
            ("task", task.name),
            ("description", task.description),
            ("arguments", "\n".join(describe_arguments(task.arguments)) or "none"),
            ("queue", f"{task.queue}, priority {task.priority}"),
            ("retries", task.max_retries),
            ("timeout", task.timeout if task.preset is None else f"{task.timeout}, by priority (preset {task.preset})"),
            ("guarantee", task.guarantee),
            ("requires", ", ".join(f"{name}={value}" for name, value in task.requires.items())),
            ("limits", ", ".join(map(_describe_limit, task.limits))),
            ("breaker", task.breaker and str(task.breaker)),
            ("weight", task.weight if task.weight > 1 else None),
            ("retention", task.retention),
            ("tags", ", ".join(task.tags)),
            ("workers", task.workers),
            ("version", task.version),
            ("registered", f"{task.registered_at}  {out.time(task.registered_at)}, by {task.registered_by}"),
        ],
    )


def describe_arguments(schema: Mapping[str, Any]) -> list[str]:
    """Describe each argument in a line: its name, its type, and whether it is required."""
    required = schema.get("required", ())
    lines = []
    for name, argument in schema.get("properties", {}).items():
        words = f"{name}: {_describe_type(argument, schema)}"
        if name in required:
            words += ", required"
        elif "default" in argument:
            words += f" = {msgspec.json.encode(argument['default']).decode()}"
        lines.append(words)
    return lines


def _describe_type(argument: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if "$ref" in argument:
        name = str(argument["$ref"]).rpartition("/")[2]
        inner = schema.get("$defs", {}).get(name, {})
        return _describe_type(inner, schema) if "enum" in inner else name
    if "enum" in argument:
        return " | ".join(msgspec.json.encode(value).decode() for value in argument["enum"])
    if "anyOf" in argument:
        return " | ".join(dict.fromkeys(_describe_type(choice, schema) for choice in argument["anyOf"]))
    if argument.get("type") == "array":
        return f"array of {_describe_type(argument['items'], schema)}" if argument.get("items") else "array"
    return str(argument.get("type", "any"))


def _describe_limit(limit: Mapping[str, Any]) -> str:
    per = f" per {limit['per']}" if limit.get("per") else " at a time"
    return f"{limit['most']} of {limit['key']}{per}"
