"""A real Prometheus with a real Alertmanager, each on its own port and folder."""

import asyncio
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2
import yaml

from tests.support.processes import free_port
from tests.support.waiting import DEADLINE_SECONDS, eventually

RULES = Path(__file__).parents[2] / "deploy" / "prometheus"


class Monitoring:
    """Scrapes every second and evaluates our rules, with their windows and delays shortened."""

    def __init__(self, folder: Path, programs: Callable[[str], str], targets: Mapping[str, list[int]]) -> None:
        """``targets``: ports on loopback, by job. ``programs``: returns the folder of a server's binaries."""
        self.folder = folder
        self.prometheus = f"http://127.0.0.1:{(port := free_port())}"
        self.alertmanager = f"http://127.0.0.1:{(other := free_port())}"
        self._write(targets, other)
        self._commands = [
            [
                f"{programs('alertmanager')}/prometheus-alertmanager",
                f"--config.file={folder}/alertmanager.yml",
                f"--storage.path={folder}/alertmanager",
                f"--web.listen-address=127.0.0.1:{other}",
                "--cluster.listen-address=",
            ],
            [
                f"{programs('prometheus')}/prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/prometheus",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
        ]
        self._started: list[subprocess.Popen[bytes]] = []
        self._client = httpx2.AsyncClient(trust_env=False, timeout=DEADLINE_SECONDS)

    async def __aenter__(self) -> Self:
        self._start()
        try:
            for url in (self.alertmanager, self.prometheus):
                await self.until(partial(self._is_ready, url), f"{url} is ready")
        except BaseException:
            await self._end()
            raise
        return self

    def _start(self) -> None:
        for command in self._commands:
            with (self.folder / f"{Path(command[0]).name}.log").open("wb") as log:
                self._started.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def query(self, expression: str) -> list[dict[str, Any]]:
        answer = await self._client.get(f"{self.prometheus}/api/v1/query", params={"query": expression})
        found: list[dict[str, Any]] = answer.raise_for_status().json()["data"]["result"]
        return found

    async def alerts(self) -> dict[str, dict[str, Any]]:
        """Return the alerts that Alertmanager holds, by name."""
        answer = await self._client.get(f"{self.alertmanager}/api/v2/alerts")
        return {alert["labels"]["alertname"]: alert for alert in answer.raise_for_status().json()}

    async def until(self, look: Callable[[], Any], what: str) -> Any:
        """Return the first truthy answer of ``look``; ``what`` names the condition if it never holds."""
        return await eventually(look, lambda: f"{what}\n{self.logs()}")

    async def until_fires(self, alert: str) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            return (await self.alerts()).get(alert)

        found: dict[str, Any] = await self.until(look, f"{alert} fires")
        return found

    async def until_resolved(self, alert: str) -> None:
        async def look() -> bool:
            return alert not in await self.alerts()

        await self.until(look, f"{alert} resolves")

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-1_500:]}" for path in sorted(self.folder.glob("*.log")))

    async def _is_ready(self, url: str) -> bool:
        with suppress(httpx2.TransportError):
            return (await self._client.get(f"{url}/-/ready")).status_code == 200
        return False

    async def _end(self) -> None:
        await self._client.aclose()
        for process in self._started:
            process.terminate()
        for process in self._started:
            await asyncio.to_thread(process.wait)

    def _write(self, targets: Mapping[str, list[int]], alertmanager: int) -> None:
        for file in ("recording.rules.yml", "alerts.rules.yml"):
            rules = yaml.safe_load((RULES / file).read_text())
            for group in rules["groups"]:
                for rule in group["rules"]:
                    # Shorten windows and delays; leave thresholds alone.
                    rule["expr"] = rule["expr"].replace("[5m]", "[30s]").replace("offset 15m", "offset 30s")
                    if "alert" in rule:
                        rule["for"] = "2s"
            (self.folder / file).write_text(yaml.safe_dump(rules))
        configuration = yaml.safe_load((RULES / "prometheus.yml").read_text())
        # A scrape timeout cannot exceed the interval, and on a busy machine a scrape takes seconds.
        configuration["global"] |= {"scrape_interval": "5s", "evaluation_interval": "1s", "scrape_timeout": "5s"}
        configuration["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]
        configuration["scrape_configs"] = [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
            for job, ports in targets.items()
        ]
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        route = {"receiver": "none", "group_by": ["alertname"], "group_wait": "1s", "group_interval": "1s"}
        (self.folder / "alertmanager.yml").write_text(yaml.safe_dump({"route": route, "receivers": [{"name": "none"}]}))
