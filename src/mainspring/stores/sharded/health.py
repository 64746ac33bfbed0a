"""Health checks on every server of a sharded store."""

from collections.abc import Sequence

import msgspec

from mainspring.core.model.cluster.diagnosis import Finding, diagnose
from mainspring.core.ports.health import Examination, StoreHealth, Vitals


class ShardedHealth:
    def __init__(self, servers: Sequence[tuple[str, StoreHealth]]) -> None:
        """``servers``: each server's health checks, with the name of the server."""
        self._servers = servers

    async def vitals(self) -> list[Vitals]:
        return [vitals for _, server in self._servers for vitals in await server.vitals()]

    async def examine(self) -> Examination:
        findings: list[Finding] = []
        for name, server in self._servers:
            found = await server.examine()
            of_server = [*found.findings, *(diagnose(found.signs) if found.signs is not None else [])]
            findings += [msgspec.structs.replace(finding, says=f"{name}: {finding.says}") for finding in of_server]
        return Examination(findings=findings)
