"""``mainspring keys`` on a store in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from typer.testing import CliRunner

from mainspring.cli.main import application
from mainspring.config.runtime import Runtime
from mainspring.config.settings import Settings
from mainspring.core.model.access.access import ApiKey, read_key
from mainspring.core.ports.storage.access import AuditEntry
from tests.support.clock import ManualClock


class Shell:
    """Runs commands on one store."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.runtime = Runtime(Settings(store="memory:", shards=4), self.clock)
        self.store = self.runtime.store
        self.stdout = ""
        self.stderr = ""

    @asynccontextmanager
    async def open(self, settings: Settings, *, makes_store: bool) -> AsyncIterator[Runtime]:
        await self.runtime.open()
        yield self.runtime

    def run(self, *words: str) -> None:
        found = CliRunner().invoke(application, ["keys", *words], catch_exceptions=False)
        self.stdout, self.stderr = found.stdout, found.stderr
        assert found.exit_code == 0, found.stderr

    def create(self, *words: str) -> tuple[str, str]:
        """Create a key; its id and its secret. The command must print nothing else."""
        self.run("create", *words)
        [line] = self.stdout.splitlines()
        read = read_key(line)
        assert read is not None
        return read

    def kept(self) -> list[ApiKey]:
        return asyncio.run(self.store.keys(None))

    def audit(self) -> list[AuditEntry]:
        return asyncio.run(self.store.audit(None))
