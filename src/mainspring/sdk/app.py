"""The application: its tasks, its schedules, and the store or API it submits to."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Self,
    TypeVar,
)

import msgspec

from mainspring.config.loading import load
from mainspring.config.runtime import Runtime, system_clock
from mainspring.config.settings import Settings
from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.runs.names import check_name, check_tenant
from mainspring.core.model.runs.reserved import WORKFLOW
from mainspring.core.worker.handler import Handler
from mainspring.sdk.backends.embedded import Backend, StoreBackend
from mainspring.sdk.calls.submitting import Submitting
from mainspring.sdk.hooks import Hooks
from mainspring.sdk.loops.blocking import BlockingLoop
from mainspring.sdk.loops.per_loop import PerLoop
from mainspring.sdk.pausing import Pausing
from mainspring.sdk.registry.schedules import ScheduleRegistry

if TYPE_CHECKING:
    from mainspring.sdk.backends.remote import RemoteBackend

T = TypeVar("T")


class Mainspring(ScheduleRegistry, Submitting, Hooks, Pausing):
    """The tasks and schedules of an application, and the methods to submit them.

    ``Mainspring()`` uses the store that ``MAINSPRING_STORE`` or ``mainspring.toml`` names, by default
    ``./mainspring.db``. ``Mainspring("postgresql://…")`` uses a PostgreSQL database.
    """

    def __init__(
        self,
        store: str | Sequence[str] | None = None,
        *,
        tenant: str = "default",
        name: str | None = None,
        scripts: str | Path | None = None,
    ) -> None:
        """``name``: identifies the schedules that this application declares, so that removed ones can be deleted.
        The default is the module that creates the application.

        ``scripts``: a folder with scripts that workers run for jobs with a payload such as ``{"script":
        "cleanup.py"}``.
        """
        super().__init__()
        self._flags: dict[str, object] = {} if store is None else {"store": store}
        if scripts is not None:
            self._flags["tasks.scripts"] = str(scripts)
        self.tenant = check_tenant("tenant", tenant)
        self.name = check_name("name", name or _find_calling_module())
        self._runtimes = PerLoop(self._new_runtime)
        self._remote: PerLoop[RemoteBackend] | None = None
        self._blocking = BlockingLoop()
        #: The settings that the process was started with, including flags, if known.
        self._completed: Settings | None = None
        #: Returns the runtime while a test replaces the store.
        self._test_runtime: Callable[[], Runtime] | None = None

    @classmethod
    def connect(cls, url: str, *, key: str | None = None, tenant: str = "default", name: str | None = None) -> Self:
        """Create an application that submits to an API instead of a store, with the same methods.

        A request without an answer is sent again with the same key, so that a lost answer creates no second job.
        """
        # Imported here, because it takes 100 ms and most programs use a store.
        from mainspring.sdk.backends.client import ApiClient, check_url
        from mainspring.sdk.backends.remote import RemoteBackend

        app = cls("memory:", tenant=tenant, name=name)
        check_url(url)
        app._remote = PerLoop(lambda: RemoteBackend(ApiClient(url, key, system_clock())))
        return app

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers that a worker can run, by task name."""
        from mainspring.config.tasks import make_fan_out_handlers, make_workflow_handler

        found = make_fan_out_handlers(self.runtime)
        for task in self._tasks.values():
            handler = task.handler()
            found.update(dict.fromkeys((task.name, *task.aliases), handler))
        if any(spec.task == WORKFLOW for spec, _ in self._jobs.values()):
            found.setdefault(WORKFLOW, make_workflow_handler(self.runtime))
        return found

    def settings(self, flags: Mapping[str, object] | None = None, file: Path | None = None) -> Settings:
        """Return the settings of this application. Values that are set in code override everything except flags."""
        if self._completed is not None and flags is None and file is None:
            return self._completed
        given = {name: value for name, value in (flags or {}).items() if value is not None}
        return load({**self._flags, **given}, file=file)

    def block_on(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop of a separate thread, and block until it is done."""
        return self._blocking.run(work)

    async def backend(self) -> Backend:
        """Return the store or API that calls are submitted to."""
        if self._remote is not None and self._test_runtime is None:
            return await self._remote.get()
        return StoreBackend(await self.runtime())

    async def runtime(self) -> Runtime:
        """Return the open runtime of this event loop. It is opened on first use and closed when the loop ends."""
        if self._test_runtime is not None:
            return self._test_runtime()
        runtime = await self._runtimes.get()
        await runtime.open()
        return runtime

    def _new_runtime(self) -> Runtime:
        if self._remote is not None:
            raise Conflict("this application goes through an API and has no store of its own")
        if self._completed is not None and self._completed.store == "memory:":
            raise Invalid("store", "memory: is there for one event loop alone", "a path, or submit from there")
        return Runtime(self.settings())

    def use(self, runtime: Runtime) -> None:
        """Submit from this loop through a runtime that the caller opened and will close.

        Other loops use the same store.
        """
        self._completed = runtime.settings
        self._runtimes.lend(runtime)

    @contextmanager
    def replace_runtime(self, runtime: Callable[[], Runtime]) -> Iterator[None]:
        """Replace the runtime of every loop by an open one. ``mainspring.testing`` uses this to replace the store."""
        if self._test_runtime is not None:
            raise Conflict("the application is in a test already")
        self._test_runtime = runtime
        try:
            yield
        finally:
            self._test_runtime = None

    def adopt(self, settings: bytes) -> None:
        """Take over the worker's settings in a child process, so that handlers submit to the same store."""
        self._completed = msgspec.json.decode(settings, type=Settings)

    async def close(self) -> None:
        """Close the connections of this loop, and those of blocking code."""
        await self._runtimes.close()
        if self._remote is not None:
            await self._remote.close()
        await asyncio.to_thread(self._blocking.close)

    @asynccontextmanager
    async def running(
        self, *, scheduler: bool = True, worker: bool = True, http: bool = False, path: str | None = None
    ) -> AsyncIterator[None]:
        """Run services inside a program that has an event loop, for example in the lifespan of a web server.

        ``path`` is where child processes find this application, as ``module:attribute``. Without it sync tasks run
        on plain threads, which cannot be killed after a timeout.
        """
        # Imported here, so that a process that only submits does not load the services.
        from mainspring.config.node import Node, Role

        wanted = {Role.SCHEDULER: scheduler, Role.WORKER: worker, Role.HTTP: http}
        node = Node(self.settings(), {role for role, is_wanted in wanted.items() if is_wanted}, self, path)
        await node.runtime.open()
        try:
            self.use(node.runtime)
            await self.declare()
            await node.start()
            try:
                yield
            finally:
                await node.stop()
        finally:
            await self._runtimes.close()
            await node.runtime.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections of blocking code."""
        self._blocking.close()

    async def __aenter__(self) -> Self:
        await self.backend()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _find_calling_module() -> str:
    """Return the module that creates the application. For a script it is the name it would be imported by."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("mainspring.sdk."):
        frame = frame.f_back
    there = {} if frame is None else frame.f_globals
    module = str(there.get("__name__") or "main")
    if module != "__main__":
        return module
    spec: ModuleSpec | None = there.get("__spec__")
    return (spec.name.removesuffix(".__main__") if spec else Path(there.get("__file__") or "main").stem) or "main"
