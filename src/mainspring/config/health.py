"""Checks, migrates and moves a store."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import msgspec

from mainspring.config.archive import examine_archive
from mainspring.config.sections.addresses import hide_secrets, read_store_servers
from mainspring.config.servers.blobs import make_run_logs
from mainspring.config.servers.broker_routes import OTHERS, read_routes
from mainspring.config.servers.brokers import make_dispatch
from mainspring.config.servers.coordinators import make_registry
from mainspring.config.settings import Settings
from mainspring.config.stores import POSTGRES, explain_missing, list_stores, make_store, parse_path, read_retention
from mainspring.config.tasks import examine_programs, make_vault
from mainspring.core.model.base.errors import Invalid, SecretsUnavailable
from mainspring.core.model.cluster.coordination import STORE, read_coordination
from mainspring.core.model.cluster.diagnosis import Finding, Level, Signs, diagnose
from mainspring.core.model.cluster.hints import HintCodec
from mainspring.core.ports.health import PressureReads, StoreHealth
from mainspring.core.ports.upkeep.schema import Migrated, Migration, Migrator
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.features.doctor.broker_health import check_broker
from mainspring.features.doctor.coordinator_health import check_coordinator
from mainspring.features.logs.service import check_run_logs
from mainspring.features.move.service import MoveReport, move_rows
from mainspring.integrations.files.folder import FolderBlobs

if TYPE_CHECKING:
    from mainspring.stores.postgres.upkeep.health import PostgresHealth


async def migrate(settings: Settings, *, contract: bool = False) -> Migrated:
    """Bring the store's schema up to date, as every process does at startup.

    Returns the applied and waiting migrations.
    """
    store = make_store(settings, SystemClock())
    applied: list[Migration] = []
    waiting: list[Migration] = []
    if settings.store.startswith(POSTGRES) or read_store_servers(settings.store):
        for server in list_stores(store):
            done = await cast(Migrator, server).migrate(contract=contract)
            applied += done.applied
            waiting += done.waiting
    elif contract:
        raise Invalid("--contract", "is for PostgreSQL", "the processes on a file are stopped and started together")
    await store.open()
    await store.close()
    return Migrated(applied=tuple(applied), waiting=tuple(waiting))


def make_health(settings: Settings) -> StoreHealth:
    """Build the health checks of the store, which do not open it like a process would."""
    if settings.store == "memory:":
        raise Invalid("store", "memory: keeps nothing", "a path for SQLite, or postgresql://…")
    if servers := read_store_servers(settings.store):
        from mainspring.stores.sharded.health import ShardedHealth

        each = [msgspec.structs.replace(settings, store=address) for address in servers]
        return ShardedHealth([(hide_secrets(one.store), make_health(one)) for one in each])
    if settings.store.startswith(POSTGRES):
        return _make_postgres_health(settings)
    from mainspring.stores.sqlite.upkeep.health import SqliteHealth

    return SqliteHealth(parse_path(settings.store), SystemClock())


def _make_postgres_health(settings: Settings) -> "PostgresHealth":
    try:
        from mainspring.stores.postgres.upkeep.health import PostgresHealth
    except ModuleNotFoundError as error:
        raise explain_missing("PostgreSQL", "postgres", error) from error
    return PostgresHealth(
        settings.store,
        settings.schema,
        SystemClock(),
        connections=settings.connections,
        retention=read_retention(settings),
        replica=(settings.replica, settings.replica_lag) if settings.replica else None,
    )


def make_watched(settings: Settings, address: str) -> PressureReads | None:
    """Build the health checks of one server of the store, or None if it is not a PostgreSQL server."""
    if not address.startswith(POSTGRES):
        return None
    return _make_postgres_health(msgspec.structs.replace(settings, store=address))


async def examine(settings: Settings) -> list[Finding]:
    """Return the findings about the store and about everything that the settings connect to it.

    This covers the coordinator, the brokers, Vault, the log storage, the archive and the limits of programs.
    """
    examination = await make_health(settings).examine()
    findings = list(examination.findings) + await _examine_coordination(settings)
    findings += await _examine_dispatch(settings, examination.signs)
    findings += await _examine_vault(settings)
    findings += await _examine_run_logs(settings, examination.signs)
    findings += await examine_archive(settings)
    findings += examine_programs(settings.tasks)
    return findings if examination.signs is None else findings + diagnose(examination.signs)


async def _examine_coordination(settings: Settings) -> list[Finding]:
    """Check the coordinator. Returns no findings if the store assigns shards."""
    found = read_coordination(settings.coordination)
    if found is None:
        return []
    registry = make_registry(found, SystemClock())
    return [await check_coordinator(registry, found.kind, settings.scheduler.lease, SystemClock())]


async def _examine_dispatch(settings: Settings, signs: Signs | None) -> list[Finding]:
    """Check the brokers. Returns no findings if there are none. ``signs``: the state of the store."""
    section, clock = settings.dispatch, SystemClock()
    routes = read_routes(section.broker, section.queues)
    namespace, queues = ("", []) if signs is None else (signs.identity, signs.queues())
    findings = []
    for url in dict.fromkeys(routes.values()):
        if url != STORE:
            mine = [queue for queue in queues if routes.get(queue, routes[OTHERS]) == url]
            broker = make_dispatch(url, clock, HintCodec(b""))
            findings.append(await check_broker(broker, clock, namespace, mine))
    return findings


async def _examine_vault(settings: Settings) -> list[Finding]:
    """Check that Vault can be read. Returns no findings if Vault is not configured."""
    if not settings.vault.address:
        return []
    try:
        fields = await asyncio.to_thread(make_vault(settings.vault).check)
    except (SecretsUnavailable, Invalid) as error:
        advice = "runs that need a secret fail until it answers; what was read before counts for an hour"
        return [Finding(check="vault", level=Level.PROBLEM, says=str(error), advice=advice)]
    return [Finding(check="vault", level=Level.OK, says=f"it answers, with {fields} secrets")]


async def _examine_run_logs(settings: Settings, signs: Signs | None) -> list[Finding]:
    """Check the log storage. Returns no findings if logs stay in the store. ``signs``: the state of the store."""
    identity = "" if signs is None else signs.identity

    async def whose() -> str:
        return identity

    logs = make_run_logs(settings, whose if identity else None)
    if logs is None:
        return []
    try:
        finding = await check_run_logs(logs)
        if finding.level is Level.OK and isinstance(logs.blobs, FolderBlobs):
            return [finding, await logs.blobs.examine_modes("run log permissions")]
        return [finding]
    finally:
        await logs.blobs.close()


async def copy_store(settings: Settings, target: Settings, tell: Callable[[str, int, int], None]) -> MoveReport:
    """Copy everything from an SQLite file to PostgreSQL. ``tell`` gets the kind, count and total of each batch."""
    if not target.store.startswith(POSTGRES):
        raise Invalid("--to", "is not PostgreSQL", "postgresql://user@host/database")
    if settings.store == "memory:" or settings.store.startswith(POSTGRES):
        raise Invalid("--from", "is not an SQLite file", "such as mainspring.db")
    from mainspring.stores.sqlite.upkeep.transfer import SqliteSource

    try:
        from mainspring.stores.postgres.upkeep.transfer import PostgresTarget
    except ModuleNotFoundError as error:
        raise explain_missing("PostgreSQL", "postgres", error) from error
    source = SqliteSource(parse_path(settings.store), SystemClock())
    to = PostgresTarget(target.store, target.schema)
    return await move_rows(source, to, hide_secrets(target.store), tell)
