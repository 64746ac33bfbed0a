"""``mainspring workflows``: jobs that are submitted together, some of which depend on others."""

import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.text import Text

from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, Raw, decode_answer, name_missing
from mainspring.cli.fields import Contains, Limit
from mainspring.cli.output import Output, format_status, shorten
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.workflows.workflow import layers
from mainspring.http.schemas.workflows import NodeOut, WorkflowMade, WorkflowOut, WorkflowSummary

group = typer.Typer(name="workflows", help="Submit, list, cancel and retry workflows.", no_args_is_help=True)

Workflow: TypeAlias = Annotated[
    str, typer.Argument(help="The workflow's id, its name, or the last characters of its id.", metavar="WORKFLOW")
]

_MARKS = {
    "succeeded": "✓",
    "failed": "✗",
    "running": "▶",
    "cancelling": "▷",
    "cancelled": "⊘",
    "skipped": "-",
    "queued": "•",
    "scheduled": "◷",
    "blocked": "·",
}
_MAX_LINES_PER_LAYER = 4
_MAX_LISTED_FAILURES = 10
_PAGE = 1_000
#: The most workflows on one page of the API.
_MAX_LISTED = 100


def register(application: typer.Typer) -> None:
    application.add_typer(group)


@command(group, "submit", makes_store=True)
async def submit(
    api: Client,
    out: Output,
    file: Annotated[
        str,
        typer.Option("--file", "-f", help="A YAML or JSON file with a name and nodes; - reads stdin.", metavar="FILE"),
    ],
) -> None:
    """Create a workflow from a file. All of its jobs are committed when this returns; if it is refused, none is.

    Examples:

    mainspring workflows submit -f nightly.yaml

    mainspring workflows submit -f - < nightly.json
    """
    body = {"tenant": api.tenant, "idempotencyKey": uuid.uuid4().hex, **_read_file(file)}
    given = {field: value for field, value in body.items() if value is not None}
    answer = await api.ask("POST", "/v1/workflows", body=given, repeatable=True)
    created = decode_answer(answer, WorkflowMade)
    for warning in created.warnings:
        out.warn(warning)
    words = f"workflow {created.workflow_id} has {len(created.nodes):,} nodes"
    out.render(answer, [created.workflow_id], lambda: out.print(words))


@command(group, "list")
async def list_workflows(api: Client, out: Output, text: Contains = None, limit: Limit = 50) -> None:
    """List workflows, newest first.

    Examples:

    mainspring workflows list

    mainspring workflows list --text nightly --limit 10
    """
    found = await api.pages("/v1/workflows", {"text": text, "tenant": api.tenant}, limit, largest=_MAX_LISTED)
    listed = [decode_answer(item, WorkflowSummary) for item in found.items]

    def draw() -> None:
        out.rows(
            ("WORKFLOW", "NAME", "STATUS", "CREATED", "NODES", "COUNTS"),
            [
                (
                    out.id(one.workflow_id),
                    one.name,
                    format_status(one.status or ""),
                    out.time(one.created_at),
                    f"{one.nodes:,}{'+' if one.more else ''}",
                    ", ".join(f"{count:,} {word}" for word, count in sorted(one.counts.items())),
                )
                for one in listed
            ],
            right=("NODES",),
            empty="no matching workflows",
        )
        if found.next_cursor is not None:
            out.report(f"more than {len(listed)} workflows match; use --limit")

    out.render(found, [one.workflow_id for one in listed], draw)


@command(group, "show")
async def show(api: Client, out: Output, workflow: Workflow) -> None:
    """Show a workflow: its nodes layer by layer, their states, and what failed.

    Example: mainspring workflows show 8042b1c2d3e4
    """
    identifier = await api.workflow(workflow)
    pages: list[Raw] = []
    cursor: str | None = None
    while True:
        query = {"limit": _PAGE, "cursor": cursor}
        with name_missing("workflow", workflow):
            pages.append(await api.ask("GET", f"/v1/workflows/{identifier}", query=query))
        cursor = decode_answer(pages[-1], WorkflowOut).next_cursor
        if cursor is None:
            break
    found = decode_answer(pages[-1], WorkflowOut)
    nodes = [node for page in pages for node in decode_answer(page, WorkflowOut).nodes]
    whole = {
        **decode_answer(pages[-1], dict[str, Any]),
        "nodes": [n for p in pages for n in decode_answer(p, dict[str, Any])["nodes"]],
    }

    def draw() -> None:
        counts = ", ".join(f"{count:,} {word}" for word, count in sorted(found.counts.items()))
        out.print(Text(f"{found.name}  ", "bold") + format_status(found.status) + f"  {counts}")
        for line in draw_layers(nodes, min(out.console.width, 80)):
            out.print(line)
        wrong = [node for node in nodes if node.status == "failed"]
        for node in wrong[:_MAX_LISTED_FAILURES]:
            out.print(f"{node.name} failed ({node.reason}): mainspring runs show {out.id(node.run_id)}")

    out.render(whole, [node.run_id for node in nodes], draw)


@command(group, "cancel")
async def cancel(api: Client, out: Output, workflow: Workflow) -> None:
    """Cancel the unfinished nodes of a workflow. Active runs are asked to stop.

    Example: mainspring workflows cancel orders
    """
    identifier = await api.workflow(workflow)
    answer = await api.ask("POST", f"/v1/workflows/{identifier}/cancel")
    stopped = decode_answer(answer, dict[str, Any])
    words = f"{stopped['cancelled']:,} nodes cancelled; the workflow is {stopped['status']}"
    out.render(answer, [identifier], lambda: out.print(words))


@command(group, "retry")
async def retry(
    api: Client,
    out: Output,
    workflow: Workflow,
    node: Annotated[
        str | None,
        typer.Option("--from", help="Retry from this node. Default: all failed nodes.", metavar="NODE"),
    ] = None,
) -> None:
    """Retry a workflow from a node on, or from all nodes that failed or were cancelled. Succeeded nodes are not
    repeated.

    Examples:

    mainspring workflows retry 8042b1c2d3e4

    mainspring workflows retry 8042b1c2d3e4 --from transform
    """
    identifier = await api.workflow(workflow)
    answer = await api.ask("POST", f"/v1/workflows/{identifier}/retry", body={} if node is None else {"node": node})
    created = decode_answer(answer, WorkflowMade)
    words = f"{len(created.nodes):,} nodes retried: {shorten(', '.join(created.nodes), 60)}"
    out.render(answer, list(created.nodes.values()), lambda: out.print(words))


def draw_layers(nodes: Sequence[NodeOut], width: int) -> Iterator[Text]:
    """Render the nodes layer by layer from the top, each layer in a few lines."""
    by_name = {node.name: node for node in nodes}
    for number, layer in enumerate(layers({node.name: node.after for node in nodes}), 1):
        cells = [_format_cell(by_name[name], width - 6) for name in layer]
        lines, left = _arrange_cells(cells, width - 6)
        for place, line in enumerate(lines):
            yield Text(f"{number if place == 0 else '':>3} │ ", "dim") + line
        if left:
            counts = Counter(by_name[name].status for name in layer[-left:])
            counts_text = ", ".join(f"{count:,} {word}" for word, count in sorted(counts.items()))
            yield Text("    │ ", "dim") + f"… {left:,} more: {counts_text}"


def _format_cell(node: NodeOut, width: int) -> Text:
    shown = format_status(node.status)
    return Text(f"{_MARKS.get(node.status, '?')} {shorten(node.name, width - 2)}", shown.style)


def _arrange_cells(cells: Sequence[Text], width: int) -> tuple[list[Text], int]:
    """Arrange cells in a few lines. Returns the lines, and the number of cells that did not fit."""
    lines: list[Text] = []
    for place, cell in enumerate(cells):
        if lines and lines[-1].cell_len + 2 + cell.cell_len <= width:
            lines[-1] = lines[-1] + "  " + cell
        elif len(lines) == _MAX_LINES_PER_LAYER:
            return lines, len(cells) - place
        else:
            lines.append(cell)
    return lines, 0


def _read_file(file: str) -> dict[str, Any]:
    # Import here: most commands read no YAML.
    from mainspring.core.runtime.plain_yaml import read_yaml

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid("--file", f"{file} cannot be read: {error}") from None
    # JSON is valid YAML as well.
    documents = read_yaml(text, file)
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise Invalid("--file", f"{file} is not a workflow", "a mapping with name and nodes")
    return documents[0]
