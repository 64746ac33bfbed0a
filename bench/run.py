"""From a store's name to its figures: makes the place, runs the suite, leaves nothing behind."""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bench import suite
from bench.figures import Figures
from bench.machine import scratch_parent
from bench.measurement import Measurement
from bench.sites.site import SiteFactory
from bench.sizes import Sizes
from mainspring.config.stores import parse_path
from mainspring.core.model.base.errors import Invalid
from tools.services.local_postgres import PostgresUnavailable, throwaway_postgres

POSTGRES, SQLITE = "postgres", "sqlite"


async def run(store: str, sizes: Sizes, chosen: Sequence[Measurement], tell: Callable[[str], None]) -> Figures:
    """Everything that was chosen, on one store."""
    started = time.monotonic()
    running = asyncio.current_task()
    assert running is not None
    # As Ctrl-C: leave by way of everything that cleans up.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    async with make_factory(store, tell) as place:
        figures = await suite.run(place, sizes, chosen, tell)
    return {**figures, "took_s": round(time.monotonic() - started, 1)}


@asynccontextmanager
async def make_factory(store: str, tell: Callable[[str], None]) -> AsyncIterator[SiteFactory]:
    if store == POSTGRES or store.startswith(("postgresql://", "postgres://")):
        async with _make_postgres_factory(store, tell) as place:
            yield place
    else:
        parent = scratch_parent() if store == SQLITE else _find_parent(store)
        from bench.sites.sqlite_site import SqliteSiteFactory

        with tempfile.TemporaryDirectory(prefix="mainspring-bench-", dir=parent) as directory:
            yield SqliteSiteFactory(Path(directory))


@asynccontextmanager
async def _make_postgres_factory(store: str, tell: Callable[[str], None]) -> AsyncIterator[SiteFactory]:
    try:
        from bench.sites.postgres_site import PostgresSiteFactory
    except ModuleNotFoundError as error:
        raise Invalid(
            "--store", f"PostgreSQL needs the package {error.name}", "pip install 'mainspring[postgres]'"
        ) from error
    if store != POSTGRES:
        place = PostgresSiteFactory(store)
        await place.look()
        yield place
        return
    tell("postgres: starting a server of our own")
    # Its making and unmaking block: elsewhere, so that Ctrl-C is heard meanwhile.
    making = throwaway_postgres()
    try:
        server = await asyncio.to_thread(making.__enter__)
    except PostgresUnavailable as error:
        raise Invalid("--store", f"no server can be started here: {error}", "give a DSN, or --store sqlite") from error
    try:
        place = PostgresSiteFactory(server.dsn, server)
        await place.look()
        if (place.facts["fsync"], place.facts["synchronous_commit"]) != ("on", "on"):
            raise Invalid("--store", "the server does not commit durably; its figures would mean nothing")
        yield place
    finally:
        await asyncio.to_thread(making.__exit__, None, None, None)


def _find_parent(store: str) -> Path:
    """The directory in which files are made: the one named, or that of the file named, which is left alone."""
    if store == "memory:":
        raise Invalid(
            "--store", "memory: is of one process, and several are measured", "sqlite, postgres, a path or a DSN"
        )
    path = parse_path(store)
    try:
        parent = path if path.is_dir() else path.absolute().parent
        usable = parent.is_dir() and os.access(parent, os.W_OK)
    except OSError as error:
        raise Invalid("--store", f"{path} cannot be reached: {error.strerror}") from error
    if not usable:
        raise Invalid(
            "--store", f"{parent} is not a directory that can be written to", "sqlite, postgres, a path or a DSN"
        )
    return parent
