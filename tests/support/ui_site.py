"""A whole Mainspring in a thread: scheduler, worker, API and dashboard on a real port, with sample data."""

import asyncio
import json
import threading
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from typing import Any

from mainspring.config.node import Node, Role
from mainspring.config.sections.access import AuthSection, OidcSection, UiSection
from mainspring.config.sections.events import NotificationsSection
from mainspring.config.sections.processes import WorkerSection
from mainspring.config.settings import Settings
from mainspring.core.model.base.instant import MILLISECOND
from tests.support.ui_tasks import NASTY, app
from tests.support.waiting import DEADLINE_SECONDS, wait_until

SITE_SHARDS = 4


class Site:
    def __init__(
        self,
        store: str,
        port: int,
        *,
        auth: bool = False,
        read_only: bool = False,
        shards: int = SITE_SHARDS,
        oidc: OidcSection | None = None,
        notifications: NotificationsSection | None = None,
    ) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}/"
        self.embedded = "://" not in store
        self.guarded = auth
        self._settings = Settings(
            store=store,
            port=port,
            shards=shards,
            auth=AuthSection(mode="keys" if auth else "none"),
            ui=UiSection(read_only=read_only),
            oidc=oidc or OidcSection(),
            notifications=notifications or NotificationsSection(),
            # A run is always in progress when a site stops, and no test needs its result.
            worker=WorkerSection(grace=200 * MILLISECOND),
        )
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._stop = asyncio.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="site", daemon=True)
        self.node: Node | None = None

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(DEADLINE_SECONDS), "the site did not start"
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive(), "the site did not stop"

    def do(self, coroutine: Any) -> Any:
        """Run a coroutine on the event loop of the site and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(DEADLINE_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()
            self._loop.close()

    async def _serve(self) -> None:
        self.node = Node(self._settings, {Role.HTTP, Role.SCHEDULER, Role.WORKER}, app, "tests.support.ui_tasks:app")
        try:
            await self.node.runtime.open()
            app.use(self.node.runtime)
            await app.declare()
            await self.node.start()
            self._started.set()
            await self._stop.wait()
        finally:
            await self.node.stop()
            await self.node.runtime.close()

    def ask(self, method: str, path: str, body: Any = None, key: str = "") -> Any:
        """Call the API over HTTP."""
        headers = {"content-type": "application/json"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310 (our own server)
        with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as answer:  # noqa: S310
            return json.load(answer)

    def submit(self, task: str, payload: Any, **more: Any) -> str:
        queue = {"send_welcome": "mail", "charge_card": "payments", "export_orders": "reports"}.get(task, "default")
        made = self.ask("POST", "v1/jobs", {"task": task, "payload": payload, "queue": queue, **more})
        return str(made["jobId"])

    def state(self, run: str) -> str:
        return str(self.ask("GET", f"v1/runs/{run}")["status"])

    def wait_for_state(self, run: str, state: str) -> None:
        wait_until(lambda: self.state(run) == state, lambda: f"run {run} is {self.state(run)}, not {state}")

    def job(self, name: str) -> str:
        found = self.ask("GET", f"v1/jobs?kind=recurring&text={name}")["items"]
        return str(found[0]["jobId"])

    def workflow(self, name: str, **nodes: dict[str, Any]) -> str:
        """Submit a workflow of ``step`` tasks. ``nodes``: the payload of each, and its dependencies as ``after``."""
        made = {
            node: {
                "task": "step",
                "queue": "reports",
                "maxRetries": 0,
                "payload": {key: value for key, value in given.items() if key != "after"},
                "after": given.get("after", []),
            }
            for node, given in nodes.items()
        }
        return str(self.ask("POST", "v1/workflows", {"name": name, "nodes": made})["workflowId"])

    def counts(self, workflow: str) -> dict[str, int]:
        found: dict[str, int] = self.ask("GET", f"v1/workflows/{workflow}")["counts"]
        return found

    def seed(self, *, nasty: bool = True) -> dict[str, str]:
        """Create jobs, runs and workflows in every state, and return their ids by name.

        ``nasty``: also create some whose texts try to break out of the page; screenshots leave them out.
        """
        for user in range(24):
            self.submit("send_welcome", {"user_id": user})
        for order in range(3):
            self.submit("charge_card", {"order": order}, maxRetries=0)
        ids = {
            "failed": self.submit("charge_card", {"order": 77}, maxRetries=1, retry={"firstDelay": "200ms"}),
            "succeeded": self.submit("send_welcome", {"user_id": 1}, name="a welcome", tags=["vip"]),
            # Longer than all tests take together.
            "running": self.submit("export_orders", {"pages": 20_000}),
            "later": self.submit("send_welcome", {"user_id": 2}, delay="20h", name="later"),
        }
        ids["job"] = self.job("sync_inventory")
        ids["workflow"] = self.workflow(
            "nightly_close",
            orders={"seconds": 0.3},
            customers={"seconds": 0.1},
            stock={"seconds": 0.2, "fails": "the warehouse did not answer"},
            clean_orders={"after": ["orders"]},
            join={"seconds": 0.2, "after": ["clean_orders", "customers"]},
            forecast={"seconds": 0.1, "after": ["join", "stock"]},
            report={"seconds": 0.1, "after": ["join"]},
            mail_the_board={"after": ["report", "forecast"]},
        )
        shards = {f"shard_{number:02}": {"seconds": 0.0, "after": ["split"]} for number in range(20)}
        merge = {"seconds": 7_200, "after": list(shards)}
        ids["wide"] = self.workflow("reindex", split={"seconds": 0}, **shards, merge=merge, swap={"after": ["merge"]})
        if nasty:
            ids |= self._seed_nasty()
        now = datetime.now(UTC).replace(microsecond=0)
        begin, end = now + timedelta(hours=1), now + timedelta(hours=3)
        freeze = {"start": begin.isoformat(), "end": end.isoformat(), "label": "release"}
        self.ask("PUT", "v1/calendars/freeze", {"freezes": [freeze], "covers": {"tags": ["frozen"]}})
        self.ask("PUT", "v1/calendars/weekend", {"timezone": "Europe/Paris", "closedDays": ["sat", "sun"]})
        counts = {"succeeded": 5, "failed": 1, "skipped": 2}
        wait_until(lambda: self.counts(ids["workflow"]) == counts, "the workflow did not complete")
        for state in ("failed", "succeeded", "running"):
            self.wait_for_state(ids[state], state)
        if nasty:
            self.wait_for_state(ids["nasty"], "failed")
        return ids

    def _seed_nasty(self) -> dict[str, str]:
        printable = NASTY.partition("\x07")[0]
        fields = {"task": printable, "name": printable, "tags": [printable], "owner": printable}
        job = self.ask("POST", "v1/jobs", {**fields, "cronExpression": "0 * * * *", "payload": {"text": NASTY}})
        return {
            "nasty": self.submit("nasty", {"text": NASTY}, name=printable),
            "nasty_workflow": self.workflow(printable, **{printable: {"seconds": 0}}),
            "nasty_job": str(job["jobId"]),
        }
