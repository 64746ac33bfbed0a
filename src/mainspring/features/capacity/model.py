"""Capacity model: rates, storage, processes, traffic and money for a load, each with its arithmetic. Pure.

The load says how many jobs arrive, the costs what one job uses, and the prices what that costs. Every figure carries
its arithmetic, so that readers can verify it.

Nonlinear effects are not modeled: a PostgreSQL server with sixteen cores counts as eight servers with two.
"""

from collections.abc import Sequence
from math import ceil

import msgspec

from mainspring.core.model.base.instant import DAY, SECOND
from mainspring.core.model.base.quantities import DAY_SECONDS, format_count, format_size
from mainspring.core.model.cluster.autoscale import SCHEDULED_A_SECOND, UTILISATION
from mainspring.features.capacity.costs import Costs, Load, Prices

#: A month has 30 days, so that bills are comparable.
MONTH_DAYS = 30
#: Minimum numbers of processes, however small the load is: one of each kind may fail.
LEAST_APIS, LEAST_SCHEDULERS, LEAST_WORKERS = 2, 3, 2
#: Most connections of one process with the default settings: a pool of eight, plus those specific to its kind.
API_CONNECTIONS, SCHEDULER_CONNECTIONS, WORKER_CONNECTIONS = 13, 10, 16
#: More connections than this on one server need a pooler.
MANY_CONNECTIONS = 500


class CapacityFigure(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A result. ``how`` is its arithmetic, in numbers."""

    name: str
    label: str
    value: float
    shown: str
    how: str


class Section(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    figures: tuple[CapacityFigure, ...]


class Capacity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All results."""

    sections: tuple[Section, ...]
    measured: str
    prices: str
    notes: tuple[str, ...]

    def value(self, name: str) -> float:
        return next(figure.value for section in self.sections for figure in section.figures if figure.name == name)


def compute_capacity(load: Load, costs: Costs, prices: Prices) -> Capacity:
    """Calculate all sections, in the order in which they depend on each other."""
    if costs.embedded:
        load = msgspec.structs.replace(load, standbys=0)
    storage = _compute_storage(load, costs)
    disk = next(figure.value for figure in storage if figure.name == "disk") / (1 + load.standbys)
    processes = _compute_one_process(load, costs) if costs.embedded else _compute_processes(load, costs, prices, disk)
    sections = [
        Section(title="RATES", figures=_compute_rates(load)),
        Section(title="STORAGE", figures=storage),
        Section(title="PROCESSES", figures=processes),
        Section(title="TRAFFIC", figures=_compute_traffic(load, costs)),
    ]
    found = Capacity(sections=tuple(sections), measured=costs.where, prices=prices.where, notes=())
    money = Section(title="MONEY", figures=_compute_cost(load, prices, found))
    return Capacity(
        sections=(*sections, money),
        measured=costs.where,
        prices=prices.where,
        notes=tuple(_list_notes(load, costs, found)),
    )


def compute_cost_per_job(monthly: float, jobs_per_day: float) -> float:
    return monthly / (jobs_per_day * MONTH_DAYS)


def _compute_rates(load: Load) -> tuple[CapacityFigure, ...]:
    attempts = load.at_peak * load.attempts
    return (
        _rate_figure(
            "jobs_per_second",
            "jobs, on average",
            load.per_second,
            f"{_n(load.jobs_per_day)} a day ÷ {DAY_SECONDS:,} s",
        ),
        _rate_figure(
            "peak_jobs_per_second",
            "jobs, at the peak",
            load.at_peak,
            f"{_n(load.per_second)}/s × {load.peak:.4g}",
        ),
        _rate_figure(
            "peak_attempts_per_second",
            "attempts, at the peak",
            attempts,
            f"{_n(load.at_peak)}/s × {load.attempts:g} attempts a job",
        ),
    )


def _compute_storage(load: Load, costs: Costs) -> tuple[CapacityFigure, ...]:
    days = load.retention / DAY
    payload = load.jobs_per_day * load.payload
    row, factor = costs.history_row, costs.index_factor
    # A payload has no index; a failed attempt keeps a row, counted as large as a history row.
    indexes = costs.kept_index_bytes
    failed = load.attempts - 1
    each = load.payload + (row + indexes) * (1 + failed)
    history = each * load.jobs_per_day * days
    waits = costs.waiting_bytes - costs.waiting_payload + load.payload
    waiting = waits * load.waiting
    database = history + waiting
    return (
        _size_figure(
            "payload_per_day",
            "payload of one day",
            payload,
            f"{_n(load.jobs_per_day)} jobs × {format_size(load.payload)}",
        ),
        _size_figure(
            "kept_per_job",
            "a job that has ended",
            each,
            f"payload {load.payload:,.0f} B + (row {row:,.0f} B + indexes {indexes:,.0f} B) × {load.attempts:g} "
            f"attempts; index factor {factor:.2f}",
        ),
        _size_figure(
            "history",
            "history",
            history,
            f"{each:,.0f} B × {_n(load.jobs_per_day)} jobs a day × {days:g} days",
        ),
        _size_figure(
            "waiting",
            "jobs that wait for their time",
            waiting,
            f"{_n(load.waiting)} × {waits:,.0f} B",
        ),
        _size_figure(
            "database",
            "one copy of the database",
            database,
            f"{format_size(history)} + {format_size(waiting)}",
        ),
        _size_figure(
            "disk",
            "disk in all",
            database * (1 + load.standbys) / UTILISATION,
            f"{format_size(database)} × {1 + load.standbys} copies ÷ {UTILISATION:g} full",
        ),
    )


def _compute_processes(load: Load, costs: Costs, prices: Prices, disk: float) -> tuple[CapacityFigure, ...]:
    """Calculate the processes. ``disk``: of one copy, in bytes."""
    attempts = load.at_peak * load.attempts
    own = load.work
    api = _compute_cores(load.at_peak, costs.api_us)
    staged = attempts * load.scheduled
    # Staging and firing are counted by the rate that autoscaling plans with, one core each, because their processor
    # time was not measured. Jobs that start at once cost a scheduler little.
    scheduler = staged / SCHEDULED_A_SECOND + _compute_cores(attempts, costs.scheduler_us)
    worker = _compute_cores(attempts, costs.worker_us + own)
    server = _compute_cores(attempts, costs.server_us) + _compute_cores(load.at_peak, costs.server_api_us)
    busy = attempts * load.takes / SECOND
    by_slots = ceil(round(busy / (load.slots * UTILISATION), 6))
    apis = max(LEAST_APIS, ceil(api))
    schedulers = max(LEAST_SCHEDULERS, ceil(scheduler))
    workers = max(LEAST_WORKERS, ceil(worker), by_slots)
    memory = apis * costs.api_mb + schedulers * costs.scheduler_mb + workers * costs.worker_mb
    by_cores = (api + scheduler + worker) / prices.node_cores
    by_memory = memory / 1e3 / UTILISATION / prices.node_memory_gb
    # A machine may fail, however small the load is.
    nodes = max(LEAST_SCHEDULERS, ceil(by_cores), ceil(by_memory))
    servers = max(1, ceil(server / prices.database_cores), ceil(disk / 1e9 / prices.database_disk_gb))
    connections = apis * API_CONNECTIONS + schedulers * SCHEDULER_CONNECTIONS + workers * WORKER_CONNECTIONS
    return (
        _number_figure(
            "api_processes", "API processes", apis, _explain_cores(load.at_peak, costs.api_us, api, LEAST_APIS)
        ),
        _number_figure(
            "schedulers",
            "schedulers",
            schedulers,
            f"{_n(staged)}/s ÷ {SCHEDULED_A_SECOND:,}/s + "
            f"{_explain_cores(attempts, costs.scheduler_us, scheduler, LEAST_SCHEDULERS)}",
        ),
        _number_figure(
            "busy_slots",
            "attempts under way at the peak",
            busy,
            f"{_n(attempts)}/s × {load.takes / SECOND:g} s",
        ),
        _number_figure(
            "workers",
            "workers",
            workers,
            f"the most of: {_n(busy)} under way ÷ ({load.slots} slots × {UTILISATION:g}); "
            f"{_explain_cores(attempts, costs.worker_us + own, worker, LEAST_WORKERS)}",
        ),
        _size_figure(
            "memory",
            "memory of all of these",
            memory * 1e6,
            f"{apis:,} × {costs.api_mb:g} MB + {schedulers:,} × {costs.scheduler_mb:g} MB + "
            f"{workers:,} × {costs.worker_mb:g} MB, without what your code holds",
        ),
        _number_figure(
            "nodes",
            f"machines with {prices.node_cores} cores",
            nodes,
            f"the most of: ({api:.2f} + {scheduler:.2f} + {worker:.2f} cores) ÷ {prices.node_cores}; "
            f"{memory / 1e3:,.1f} GB ÷ {UTILISATION:g} full ÷ {prices.node_memory_gb:g} GB; "
            f"at least {LEAST_SCHEDULERS}",
        ),
        _number_figure(
            "database_cores",
            "cores of the database",
            server,
            f"({_n(attempts)}/s × {costs.server_us:g} µs + {_n(load.at_peak)}/s × {costs.server_api_us:g} µs) "
            f"÷ {UTILISATION:g} busy",
        ),
        _number_figure(
            "database_servers",
            f"primaries with {prices.database_cores} cores",
            servers,
            f"the most of: {server:.2f} cores ÷ {prices.database_cores}; "
            f"{format_size(disk)} ÷ {format_size(prices.database_disk_gb * 1e9)}",
        ),
        _number_figure(
            "connections",
            f"connections to {'the' if servers == 1 else 'each'} database, at most",
            connections,
            f"{apis:,} APIs × {API_CONNECTIONS} + {schedulers:,} schedulers × {SCHEDULER_CONNECTIONS} + "
            f"{workers:,} workers × {WORKER_CONNECTIONS}"
            + ("" if servers == 1 else f"; × {servers:,} = {connections * servers:,} in all"),
        ),
    )


def _compute_one_process(load: Load, costs: Costs) -> tuple[CapacityFigure, ...]:
    attempts = load.at_peak * load.attempts
    api, worker = _compute_cores(load.at_peak, costs.api_us), _compute_cores(attempts, costs.worker_us + load.work)
    busy = attempts * load.takes / SECOND
    return (
        _number_figure(
            "busy_slots",
            "attempts under way at the peak",
            busy,
            f"{_n(attempts)}/s × {load.takes / SECOND:g} s",
        ),
        _number_figure(
            "cores",
            "cores of the one process",
            api + worker,
            f"({_n(load.at_peak)}/s × {costs.api_us:g} µs + {_n(attempts)}/s × {costs.worker_us + load.work:g} µs) "
            f"÷ {UTILISATION:g} busy",
        ),
        _number_figure("nodes", "machines", 1, "SQLite is a file of one machine"),
        _number_figure("database_servers", "database servers", 0, "SQLite needs none"),
        _number_figure("connections", "connections to a database", 0, "SQLite has none"),
    )


def _compute_traffic(load: Load, costs: Costs) -> tuple[CapacityFigure, ...]:
    # A payload goes to the API, from there to the store, and with every attempt to a worker.
    passes = 2 + load.attempts
    payload = load.at_peak * load.payload * passes
    log_each = costs.log_bytes - costs.kept_payload + load.payload
    log = load.at_peak * load.attempts * log_each * load.standbys
    month = (payload + log) / load.peak * DAY_SECONDS * MONTH_DAYS
    return (
        _size_figure(
            "payload_traffic",
            "payloads, a second at the peak",
            payload,
            f"{_n(load.at_peak)}/s × {load.payload:,.0f} B × {passes:g} (to the API, the store, a worker an attempt)",
        ),
        _size_figure(
            "replication_traffic",
            "to standbys, a second at the peak",
            log,
            f"{_n(load.at_peak)}/s × {load.attempts:g} × {log_each:,.0f} B written ahead × {load.standbys} standbys",
        ),
        _size_figure(
            "traffic_per_month",
            "both, a month",
            month,
            f"({format_size(payload)}/s + {format_size(log)}/s) ÷ {load.peak:.4g} × {DAY_SECONDS:,} s "
            f"× {MONTH_DAYS} days",
        ),
    )


def _compute_cost(load: Load, prices: Prices, found: Capacity) -> tuple[CapacityFigure, ...]:
    copies = 1 + load.standbys
    nodes, servers = found.value("nodes"), found.value("database_servers")
    disk, traffic = found.value("disk") / 1e9, found.value("traffic_per_month") / 1e9
    unit = prices.currency
    parts = {
        "machines": (nodes * prices.node, f"{nodes:,.0f} × {unit}{prices.node:,g}"),
        "databases": (
            servers * copies * prices.database,
            f"{servers:,.0f} primaries × {copies} copies × {unit}{prices.database:,g}",
        ),
        "disk": (disk * prices.storage_gb, f"{disk:,.1f} GB × {unit}{prices.storage_gb:g}"),
        "traffic": (traffic * prices.traffic_gb, f"{traffic:,.1f} GB × {unit}{prices.traffic_gb:g}"),
        "other": (prices.other, "as the prices say"),
    }
    monthly = sum(cost for cost, _ in parts.values())
    each = compute_cost_per_job(monthly, load.jobs_per_day)
    return (
        *(
            CapacityFigure(name=f"{name}_cost", label=name, value=cost, shown=f"{unit}{cost:,.0f}", how=how)
            for name, (cost, how) in parts.items()
            if cost or name != "other"
        ),
        CapacityFigure(
            name="monthly_cost",
            label="a month",
            value=monthly,
            shown=f"{unit}{monthly:,.0f}",
            how=" + ".join(f"{cost:,.0f}" for cost, _ in parts.values() if cost),
        ),
        CapacityFigure(
            name="cost_per_job",
            label="a job",
            value=each,
            shown=f"{unit}{each:.2g}" if each >= 1e-4 else f"{unit}{each * 1e6:.3g} a million",
            how=f"{unit}{monthly:,.0f} ÷ ({_n(load.jobs_per_day)} jobs a day × {MONTH_DAYS} days)",
        ),
    )


def _list_notes(load: Load, costs: Costs, found: Capacity) -> Sequence[str]:
    notes = ["processor times are taken as linear in cores: measure on the machine that you will have"]
    servers, connections = found.value("database_servers"), found.value("connections")
    each = load.at_peak * load.attempts / max(servers, 1)
    if each > costs.seen_per_second:
        notes.append(
            f"{_n(each)}/s on one server is reckoned: the most that was measured is {_n(costs.seen_per_second)}/s"
        )
    if not load.work:
        notes.append("what your own code uses of a processor is not known: --work 5ms counts it")
    if not servers:
        notes.append("SQLite is one process on one machine: it has no standby, and nobody takes over")
        if found.value("cores") > 1:
            notes.append("one process has one core for this: it cannot keep up at the peak; PostgreSQL can")
        return notes
    if servers > 1:
        notes.append(f"one server is not enough: a store over {servers:,.0f} servers, split by tenant")
    # A process opens as many connections to each server as to a single one.
    if connections > MANY_CONNECTIONS:
        notes.append(
            f"{connections:,.0f} connections to one server: pgbouncer in between, or fewer workers with more slots"
        )
    notes.append("traffic counts payloads and the log, not statements and answers around them")
    return notes


def _compute_cores(rate: float, micros: float) -> float:
    """Return how many cores a rate keeps busy, with headroom."""
    return rate * micros / SECOND / UTILISATION


def _explain_cores(rate: float, micros: float, cores: float, least: int) -> str:
    return f"{_n(rate)}/s × {micros:,.4g} µs ÷ {UTILISATION:g} busy = {cores:.2f} cores, at least {least}"


def _rate_figure(name: str, label: str, value: float, how: str) -> CapacityFigure:
    return CapacityFigure(name=name, label=label, value=value, shown=f"{_n(value)}/s", how=how)


def _size_figure(name: str, label: str, value: float, how: str) -> CapacityFigure:
    return CapacityFigure(name=name, label=label, value=value, shown=format_size(value), how=how)


def _number_figure(name: str, label: str, value: float, how: str) -> CapacityFigure:
    return CapacityFigure(name=name, label=label, value=value, shown=_n(value), how=how)


def _n(value: float) -> str:
    return format_count(value)
