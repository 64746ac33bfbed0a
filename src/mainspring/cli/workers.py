"""``mainspring workers``: the processes that do the work."""

from typing import Annotated

import msgspec
import typer
from rich.text import Text

from mainspring.cli.each import each
from mainspring.cli.output import Output
from mainspring.cli.target import Client, Raw, command, read
from mainspring.domain.errors import Invalid, NotFound

group = typer.Typer(name="workers", help="See which workers are alive; let one leave.", no_args_is_help=True)


def register(application: typer.Typer) -> None:
    application.add_typer(group)


class Worker(msgspec.Struct, rename="camel"):
    worker_id: str
    name: str
    version: str
    started_at: str
    running: int
    draining: bool
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    labels: dict[str, str] = {}


class Workers(msgspec.Struct):
    items: list[Worker]


@command(group, "list")
async def list_workers(api: Client, out: Output) -> None:
    """List the workers that are alive, and what they do.

    Example: mainspring workers list
    """
    answer = await api.ask("GET", "/v1/workers")
    workers = read(answer, Workers).items

    def show() -> None:
        roomy = ("LABELS", "QUEUES", "TASKS") if out.roomy else ("QUEUES",)
        out.rows(
            ("WORKER", "NAME", "RUNNING", "STARTED", "STATE", *roomy),
            [
                (
                    worker.worker_id,
                    worker.name,
                    f"{worker.running:,}",
                    out.time(worker.started_at),
                    Text("draining", "yellow") if worker.draining else "",
                    *((", ".join(f"{name}={value}" for name, value in worker.labels.items()),) if out.roomy else ()),
                    ", ".join(worker.queues),
                    *((", ".join(worker.tasks),) if out.roomy else ()),
                )
                for worker in workers
            ],
            right=("RUNNING",),
        )

    out.tell(answer, [worker.worker_id for worker in workers], show)


@command(group, "drain")
async def drain(
    api: Client,
    out: Output,
    workers: Annotated[
        list[str], typer.Argument(help="Workers, by number or name.", metavar="WORKER…", show_default=False)
    ],
) -> None:
    """Ask workers to finish what they run and to leave. What starts them may start them again.

    Example: mainspring workers drain 17
    """
    alive = read(await api.ask("GET", "/v1/workers"), Workers).items

    async def one(text: str) -> tuple[Raw, str, str]:
        meant = [worker.worker_id for worker in alive if text in (worker.worker_id, worker.name)]
        if len(meant) > 1:
            raise Invalid("worker", f"{text!r} is the name of several", "their numbers")
        if not meant:
            raise NotFound(f"there is no worker {text!r}; see: mainspring workers list")
        answer = await api.ask("POST", f"/v1/workers/{meant[0]}/drain", repeatable=True)
        return answer, meant[0], f"worker {text} leaves when it has finished"

    await each(out, workers, one)
