"""Commands that run processes: all components in one, or a scheduler, a worker or the API alone."""

import asyncio
import gc
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import watchfiles

from mainspring.cli import logs
from mainspring.cli.autoscale import WorkerProcesses, build_command, parse_bounds
from mainspring.cli.autoscale import autoscale as scale_by_load
from mainspring.cli.client.target import choose_target, connect
from mainspring.cli.draining import request_drain, wait_for_exit
from mainspring.cli.options import (
    Application,
    Config,
    Coordination,
    Datacenter,
    Host,
    Labels,
    LogLevel,
    Name,
    Port,
    Priorities,
    Queues,
    Scripts,
    ShowOutput,
    Store,
    load_application,
    load_settings,
)
from mainspring.cli.output import Output
from mainspring.config.node import Node, Role
from mainspring.config.runtime import Runtime
from mainspring.config.services.worker import DEFAULT_SLOTS
from mainspring.config.settings import Settings
from mainspring.config.tasks import make_builtin_tasks
from mainspring.core.model.base.errors import Invalid, StoreDamaged, StoreUnavailable
from mainspring.core.model.base.instant import SECOND, Micros, isoformat
from mainspring.core.model.cluster.autoscale import Bounds
from mainspring.core.model.schedules.job import Job, JobState
from mainspring.core.model.schedules.schedule import describe
from mainspring.core.runtime.log import get_logger
from mainspring.core.runtime.signals import LastResort, StopSignals, flush
from mainspring.core.runtime.tasks import cancel_and_wait
from mainspring.core.worker.own_loop import OwnLoop
from mainspring.sdk.app import Mainspring

#: How long the interpreter may take to exit after all resources are closed.
_EXITING: Micros = 2 * SECOND

#: How long startup waits for an unreachable store, and how often it retries. Shorter than the chart's startup probes
#: allow: after a failed start, Kubernetes would still be backing off when the store is back.
PATIENCE: Micros = 90 * SECOND
_TRIED_EVERY: Micros = SECOND

#: Garbage collection threshold: so many new container objects trigger a search for cycles. Python's default is 700.
_GARBAGE = 50_000


def register(application: typer.Typer) -> None:
    application.command("up")(up)
    application.command("scheduler")(scheduler)
    application.command("worker")(worker)
    application.command("api")(api)


def up(
    app: Application = None,
    store: Store = None,
    host: Host = None,
    port: Port = None,
    queue: Queues = None,
    coordination: Coordination = None,
    datacenter: Datacenter = None,
    scripts: Scripts = None,
    config: Config = None,
    log_level: LogLevel = None,
    show_output: ShowOutput = None,
    reload: Annotated[bool, typer.Option("--reload", help="Restart when a Python file changes.")] = False,
) -> None:
    """Run everything in one process: scheduler, worker and the HTTP API.

    Without an application, the worker offers only the built-in tasks, on the queue default or those named.

    Examples:

    mainspring up tasks:app --queue mail:20 --queue default:100

    mainspring up --scripts ./scripts
    """
    if reload:
        _reload()
        return
    loaded = load_application(app) if app else None
    settings = load_settings(
        loaded,
        config,
        store=store,
        host=host,
        port=port,
        datacenter=datacenter,
        worker__queues=queue,
        tasks__scripts=scripts,
        coordination=coordination,
        log__level=log_level,
        log__output=show_output,
    )
    roles = {Role.SCHEDULER, Role.HTTP}
    if loaded or make_builtin_tasks(settings).names:
        roles.add(Role.WORKER)
    _run(settings, roles, loaded, app)


def scheduler(
    app: Application = None,
    store: Store = None,
    name: Name = None,
    coordination: Coordination = None,
    datacenter: Datacenter = None,
    config: Config = None,
    log_level: LogLevel = None,
) -> None:
    """Run a scheduler: it fires schedules, queues due runs, and requeues runs of expired workers. Start as many as
    needed.

    All schedulers of a store must have the same coordination. An application supplies its settings, such as its store.

    Example: mainspring scheduler --coordination etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379
    """
    settings = load_settings(
        load_application(app) if app else None,
        config,
        store=store,
        scheduler__name=name,
        coordination=coordination,
        datacenter=datacenter,
        log__level=log_level,
    )
    _run(settings, {Role.SCHEDULER}, None, None)


def worker(
    app: Application = None,
    store: Store = None,
    queue: Queues = None,
    priority: Priorities = None,
    label: Labels = None,
    datacenter: Datacenter = None,
    name: Name = None,
    scripts: Scripts = None,
    autoscale: Annotated[
        str | None,
        typer.Option(
            "--autoscale",
            help="Run as many worker processes as the load needs, between these bounds.",
            metavar="LEAST:MOST",
            show_default=False,
        ),
    ] = None,
    drain: Annotated[
        str | None,
        typer.Option(
            "--drain",
            help="Start nothing: drain this worker, and wait until it has exited.",
            metavar="NAME|ID",
            show_default=False,
        ),
    ] = None,
    config: Config = None,
    log_level: LogLevel = None,
    show_output: ShowOutput = None,
) -> None:
    """Run a worker: it claims runs, executes them, and reports their outcomes. Start as many as you like.

    SIGTERM lets active runs finish within the grace period; a second one releases them at once. Without an application,
    the worker offers only the built-in tasks, on the queue default or those named.

    Examples:

    mainspring worker tasks:app --queue mail:20 --label gpu=a100

    mainspring worker tasks:app --datacenter eu-west

    mainspring worker tasks:app --priority 1:100 --priority 2:50 --priority 3:20

    mainspring worker tasks:app --autoscale 1:16

    mainspring worker --drain mailer-1
    """
    if drain is not None:
        _drain(drain, store, config)
        return
    bounds = None if autoscale is None else parse_bounds(autoscale)
    loaded = load_application(app) if app else None
    settings = load_settings(
        loaded,
        config,
        store=store,
        worker__queues=queue,
        worker__priorities=priority,
        worker__labels=label,
        datacenter=datacenter,
        worker__name=name,
        tasks__scripts=scripts,
        log__level=log_level,
        log__output=show_output,
    )
    if loaded is None and not make_builtin_tasks(settings).names:
        raise Invalid("application", "without one, and with the built-in tasks off, there is nothing to run")
    if bounds is not None:
        _autoscale(settings, loaded, bounds)
        return
    _run(settings, {Role.WORKER}, loaded, app)


def _drain(worker: str, store: str | None, config: Path | None) -> None:
    async def work() -> None:
        async with connect(choose_target(None, None, None, store, config, None)) as client:
            out = Output(as_json=False, quiet=False, utc=False, now=client.clock.now)
            _, number = await request_drain(client, worker)
            await wait_for_exit(client, out, number)
            out.report(f"worker {worker} has left")

    asyncio.run(work())


def _autoscale(settings: Settings, app: Mainspring | None, bounds: Bounds) -> None:
    """Run a parent process that starts and stops workers. It connects to the store only to read the load."""
    logs.configure(settings.log)
    queues = dict(settings.worker.queues) or dict.fromkeys(app.queues() if app else ("default",), DEFAULT_SLOTS)

    async def work() -> None:
        runtime = Runtime(msgspec.structs.replace(settings, connections=2))
        fleet = WorkerProcesses(build_command(sys.argv[1:]), settings.worker.name, runtime.clock.monotonic)
        with LastResort(runtime.clock) as last_resort:
            # The workers are killed after their own grace period; the same then applies to this process.
            async with StopSignals(last_resort, settings.worker.grace + _EXITING) as stop:
                if await _wait_for_first(stop.asked.wait(), wait_for_runtime(runtime)) == 0:
                    return
                try:
                    await scale_by_load(runtime, fleet, bounds, queues, stop.asked)
                finally:
                    await fleet.stop(stop.insisted)
                    await runtime.close()

    asyncio.run(work())


def api(
    app: Application = None,
    store: Store = None,
    host: Host = None,
    port: Port = None,
    config: Config = None,
    log_level: LogLevel = None,
) -> None:
    """Run the HTTP API alone; /docs describes it. Start as many as you like, each on its own port.

    An application supplies its settings, such as its store.

    An address other than loopback needs authentication: see mainspring keys.

    Example: mainspring api --store postgresql://localhost/mainspring --port 7071
    """
    loaded = load_application(app) if app else None
    settings = load_settings(loaded, config, store=store, host=host, port=port, log__level=log_level)
    _run(settings, {Role.HTTP}, None, None)


def _run(settings: Settings, roles: set[Role], app: Mainspring | None, path: str | None) -> None:
    logs.configure(settings.log)
    node = Node(settings, roles, app, path)
    with (
        LastResort(node.runtime.clock) as last_resort,
        asyncio.Runner(loop_factory=OwnLoop) as runner,
    ):
        if runner.run(_serve(node, app, last_resort, settings.worker.grace)):
            # Start the same command in a fresh process, which frees leaked memory.
            flush()
            node.hand_over_registration()
            os.execv(sys.executable, [sys.executable, "-m", "mainspring", *sys.argv[1:]])  # noqa: S606


async def _serve(node: Node, app: Mainspring | None, last_resort: LastResort, grace: Micros) -> bool:
    """Run the node until a signal arrives or the worker has recycled.

    Returns whether it recycled. All resources of the node are closed on return.
    """
    status = 1
    recycled = False
    async with StopSignals(last_resort, grace) as stop:
        insisting = asyncio.create_task(_run_when(stop.insisted.wait(), node.stop_now))
        try:
            started = await _wait_for_first(stop.asked.wait(), _start(node, app)) == 1
            if started and await _wait_for_first(stop.asked.wait(), node.wait_for_end()) == 1:
                recycled = await node.wait_for_end()
            status = 0
        finally:
            await node.stop()
            insisting.cancel()
            await node.runtime.close()
            # Threads and other leftovers of handlers must not keep the process alive.
            last_resort.end_within(_EXITING, status)
    return recycled


async def wait_for_runtime(runtime: Runtime) -> None:
    """Open the store and the brokers, and retry for up to ``PATIENCE`` while the store is unavailable.

    The store's server may be starting or being replaced. ``StoreDamaged`` is raised at once.
    """
    until = runtime.clock.monotonic() + PATIENCE
    warned = False
    while True:
        try:
            await runtime.open()
        except StoreDamaged:
            raise
        except StoreUnavailable as error:
            if runtime.clock.monotonic() >= until:
                raise
            if not warned:
                get_logger("mainspring").warning("store unavailable, waiting for it", error=str(error))
                warned = True
        else:
            return
        await runtime.clock.sleep(_TRIED_EVERY)


async def _start(node: Node, app: Mainspring | None) -> None:
    await wait_for_runtime(node.runtime)
    # Declare schedules first: if one is refused, nothing has been started.
    schedules = [] if app is None else await _declare(node, app)
    node.check()
    typer.echo("\n".join([node.build_banner(), *schedules]), err=True)
    await node.start()
    typer.echo("mainspring: ready", err=True)
    # The objects that exist now stay alive. Scanning them every few hundred requests would take a tenth of the time.
    gc.freeze()
    gc.set_threshold(_GARBAGE)


async def _declare(node: Node, app: Mainspring) -> list[str]:
    """Declare the schedules of the application in the store. Returns lines that describe them for the banner."""
    app.use(node.runtime)
    jobs = await app.declare()
    lines = [f"  schedule {job.spec.name}: {describe(job.spec.schedule, job.id)}; {_next_run(job)}" for job in jobs]
    lines += [f"  warning: {words}" for words in await node.find_obstacles(jobs)]
    removed = await app.list_removed()
    if removed:
        names = ", ".join(removed[:5]) + (" …" if len(removed) > 5 else "")
        lines.append(
            f"  still in the store, but not in the code: schedule{'s' if len(removed) > 1 else ''} {names}; "
            "mainspring plan shows what mainspring apply would remove"
        )
    return lines


def _next_run(job: Job) -> str:
    if job.state is not JobState.SCHEDULED:
        return job.state.value
    fires = job.next_fires(1)
    return f"next {isoformat(fires[0])}" if fires else "next after its current run"


async def _wait_for_first(*waits: Coroutine[None, None, object]) -> int:
    """Return the index of the coroutine that finishes first, after the others are cancelled and have ended."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first = min(tasks.index(task) for task in done)
        await tasks[first]
        return first
    finally:
        await cancel_and_wait(*tasks)


async def _run_when(event: Awaitable[object], action: Callable[[], None]) -> None:
    await event
    action()


def _reload() -> None:
    command = [sys.executable, "-m", "mainspring", *(word for word in sys.argv[1:] if word != "--reload")]
    typer.echo("watching *.py under this directory", err=True)
    watchfiles.run_process(
        Path.cwd(),
        target=shlex.join(command),
        target_type="command",
        watch_filter=watchfiles.PythonFilter(),
        sigint_timeout=30,
    )
