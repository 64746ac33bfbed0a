"""The command line of the benchmark: ``mainspring bench`` or ``python -m bench``."""

from typing import Annotated

import typer

from bench import command
from bench.sites import local_broker
from mainspring.config.servers.broker_routes import check_broker, split_brokers

application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@application.command()
def bench(
    suite: Annotated[str, typer.Argument(help="What is measured: engine or api.")] = "engine",
    store: Annotated[
        str | None,
        typer.Option("--store", help="sqlite, postgres (a server of our own), a path or a DSN; both without it."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller numbers, in about a minute a store.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, and nothing else there.")] = False,
    only: Annotated[str, typer.Option("--only", help="Some measurements, by name: full,drain,idle …")] = "",
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="Take medians of so many rounds.")] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=1, max=86_400, help="The window of the full cycle, or of each load on the API."),
    ] = None,
    soak: Annotated[str | None, typer.Option("--soak", help="Full load for so long, such as 30m, and no more.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Worker processes on PostgreSQL.")] = None,
    dispatch: Annotated[
        str,
        typer.Option(
            "--dispatch",
            help="What feeds the workers, one after the other: store, redis, rabbitmq, kafka (servers of our own, "
            "from a checkout), or addresses.",
        ),
    ] = "",
    scale: Annotated[float, typer.Option("--scale", min=0.0001, max=1, hidden=True)] = 1,
) -> None:
    """Measure throughput, latency, lateness and cost, with processes as in production.

    Example: mainspring bench --store postgres --only full,drain

    Example: mainspring bench api --store postgres

    Example: mainspring bench --store postgres --only full,idle --dispatch store,redis,rabbitmq,kafka
    """
    names = [name.strip() for name in only.split(",") if name.strip()]
    if soak is not None:
        names.append("soak")
    sizes = command.sizes_of(quick=quick, rounds=rounds, seconds=seconds, soak=soak, workers=workers, scale=scale)
    brokers = split_brokers(dispatch, local_broker.NAMES)
    for broker in brokers:
        if broker in local_broker.NAMES:
            local_broker.check_lendable(broker)
        else:
            check_broker(broker, "--dispatch")
    stores = [store] if store else command.STORES
    raise typer.Exit(command.run(suite, stores, sizes, names, as_json=json, brokers=brokers))


if __name__ == "__main__":
    application(prog_name="python -m bench")
