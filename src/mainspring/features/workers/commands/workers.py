"""``mainspring workers``: the processes that execute runs."""

from typing import Annotated

import typer
from rich.text import Text

from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, Raw, decode_answer
from mainspring.cli.draining import request_drain, wait_for_exit
from mainspring.cli.each import act_on_each
from mainspring.cli.output import Output
from mainspring.core.model.base.instant import MILLISECOND
from mainspring.core.model.cluster.clock_guard import ClockRules
from mainspring.http.schemas.workers import Workers

group = typer.Typer(name="workers", help="List and drain workers.", no_args_is_help=True)


def register(application: typer.Typer) -> None:
    application.add_typer(group)


@command(group, "list")
async def list_workers(api: Client, out: Output) -> None:
    """List the live workers, and what they do.

    Example: mainspring workers list
    """
    answer = await api.ask("GET", "/v1/workers")
    workers = decode_answer(answer, Workers).items

    def show() -> None:
        roomy = ("CLOCK", "LABELS", "QUEUES", "TASKS") if out.roomy else ("QUEUES",)
        out.rows(
            ("WORKER", "NAME", "RUNNING", "STARTED", "STATE", *roomy),
            [
                (
                    worker.worker_id,
                    worker.name,
                    f"{worker.running:,}",
                    out.time(worker.started_at),
                    Text("draining", "yellow") if worker.draining else "",
                    *((_clock(worker.clock_offset_ms),) if out.roomy else ()),
                    *((", ".join(f"{name}={value}" for name, value in worker.labels.items()),) if out.roomy else ()),
                    ", ".join(worker.queues),
                    *((", ".join(worker.tasks),) if out.roomy else ()),
                )
                for worker in workers
            ],
            right=("RUNNING",),
            empty="no workers; to start one: mainspring worker MODULE:APP",
        )

    out.render(answer, [worker.worker_id for worker in workers], show)


def _clock(offset: float | None) -> Text:
    if offset is None:
        return Text("")
    return Text(f"{offset:+,.0f} ms", "yellow" if abs(offset) >= ClockRules().warn / MILLISECOND else "")


@command(group, "drain")
async def drain(
    api: Client,
    out: Output,
    workers: Annotated[
        list[str], typer.Argument(help="Workers, by id or name.", metavar="WORKER…", show_default=False)
    ],
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the workers have left, and show their active runs.")
    ] = False,
) -> None:
    """Drain workers: they finish their active runs and leave. A supervisor such as systemd may start them again.

    Examples:

    mainspring workers drain 17

    mainspring workers drain mailer-1 mailer-2 --wait
    """

    async def one(text: str) -> tuple[Raw, str, str]:
        answer, worker = await request_drain(api, text)
        if wait:
            await wait_for_exit(api, out, worker)
        return answer, worker, f"worker {text} has left" if wait else f"worker {text} leaves after its active runs"

    await act_on_each(out, workers, one)
