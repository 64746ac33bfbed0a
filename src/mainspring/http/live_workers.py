"""The live workers, and what they say about a job: whether one of them could run it."""

from collections.abc import Iterable

from mainspring.core.model.base.errors import Conflict
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import MINUTE, SECOND, Micros
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.obstacles import Obstacles
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job, JobSpec, NewJob
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.catalog import Catalog, SessionView
from mainspring.core.runtime.cached import Cached
from mainspring.core.runtime.log import get_logger

#: How long the list of workers is cached.
CACHED: Micros = 2 * SECOND
#: The largest number of warnings in one answer about many jobs.
MOST_WARNINGS = 20
_MOST_LOGGED = 1_000


class LiveWorkers:
    """The live workers of all tenants, cached for two seconds."""

    def __init__(self, store: Catalog, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._log = get_logger("mainspring.api")
        self._workers = Cached(lambda: store.sessions("worker"), clock, CACHED)
        self._known_tasks = Cached(self._read_tasks, clock, CACHED)
        self._obstacles = Cached(self._read_obstacles, clock, CACHED)
        #: When each warning about jobs was last logged.
        self._warned: dict[str, Micros] = {}

    async def list_live(self, tenant: str | None) -> list[SessionView]:
        """Return the live workers that take runs of a tenant, or of every tenant. The list may be two seconds old."""
        return [worker for worker in await self._workers.get() if tenant is None or worker.serves in ("", tenant)]

    def forget(self) -> None:
        """Drop the cached workers, so that a worker that registers here is visible here at once."""
        self._workers.forget()
        self._obstacles.forget()

    async def find_session(self, session: SessionId) -> SessionView | None:
        """Return a worker's session, even if it has expired.

        The fields that are used here never change. Whether the worker is alive is decided by the store.
        """
        known = next((worker for worker in await self._workers.get() if worker.id == session), None)
        return known or await self._store.session(session)

    async def know_task(self, tenant: str, task: str) -> bool:
        """Return whether a live worker that takes runs of the tenant knows the task."""
        known = await self._known_tasks.get()
        return task in known.get("", ()) or task in known.get(tenant, ())

    async def find_warnings(self, job: NewRun | RunView | NewJob | Job) -> list[str]:
        """Describe what keeps an accepted job from running now, based on the known live workers."""
        obstacles = await self._obstacles.get()
        if isinstance(job, (NewRun, RunView)):
            return list(obstacles.find(job.tenant, job.queue, job.task, job.policy.requires, (), job.priority))
        return list(obstacles.find_for_schedule(job.tenant, job.spec))

    async def describe_schedule_warnings(self, tenant: str, specs: Iterable[JobSpec]) -> list[str]:
        """Describe what keeps schedules from running now, each reason once."""
        return (await self._obstacles.get()).describe(tenant, specs)[:MOST_WARNINGS]

    async def log_warnings(self, job: NewRun | NewJob) -> list[str]:
        """Return the warnings about a job that is being accepted, and log each warning at most once a minute."""
        found = await self.find_warnings(job)
        now = self._clock.monotonic()
        for warning in found:
            if now - self._warned.get(warning, -MINUTE) >= MINUTE:
                if len(self._warned) >= _MOST_LOGGED:
                    self._warned.clear()
                self._warned[warning] = now
                self._log.warning("accepted job cannot run", job=job.id, tenant=job.tenant, reason=warning)
        return found

    async def check_runnable(self, job: NewRun | NewJob) -> None:
        """Refuse a job that no live worker can run, because the caller asked for ``strict``."""
        found = await self.find_warnings(job)
        if found:
            raise Conflict(f"{'; '.join(found)} (refused, because strict was asked for)")

    async def _read_tasks(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for worker in await self._workers.get():
            found.setdefault(worker.serves, set()).update(worker.tasks)
        return found

    async def _read_obstacles(self) -> Obstacles:
        return Obstacles(await self._workers.get())
