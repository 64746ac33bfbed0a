"""The tasks that a worker runs: the built-in tasks and those of an application."""

import functools
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mainspring.config.runtime import Runtime, system_time
from mainspring.config.sections.tasks import TasksSection, VaultSection
from mainspring.config.sections.values import read_file
from mainspring.config.settings import Settings
from mainspring.core.model.alerts.alert_messages import QUEUE as NOTIFICATIONS
from mainspring.core.model.base.addresses import Tls
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.secrets import SecretRules
from mainspring.core.model.cluster.diagnosis import Finding, Level
from mainspring.core.model.events.webhooks import QUEUE, read_webhooks
from mainspring.core.model.runs.reserved import FAN_IN, FAN_OUT, WORKFLOW
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.model.tasks.task_entry import FAN_OUT_ENTRY, WORKFLOW_ENTRY, TaskEntry
from mainspring.core.ports.egress import Egress
from mainspring.core.ports.secrets import Secrets
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.store import Store
from mainspring.core.submit.jobs import Jobs
from mainspring.core.worker.builtin.confinement import Confinement, Limits
from mainspring.core.worker.builtin.container import Containers, find_engine
from mainspring.core.worker.builtin.tasks import BuiltinTasks
from mainspring.core.worker.handler import AsyncHandler, Handler, HandlerSource, Host
from mainspring.core.worker.secrets import Keyring
from mainspring.integrations.chained_secrets import ChainedSecrets
from mainspring.integrations.environment_secrets import EnvironmentSecrets
from mainspring.integrations.files.secrets import FolderSecrets
from mainspring.integrations.smtp.mail import SmtpMail
from mainspring.integrations.tls import build_tls_context

if TYPE_CHECKING:
    from mainspring.integrations.vault.secrets import VaultSecrets


class Application(HandlerSource, Protocol):
    """The tasks of an application."""

    def queues(self) -> Collection[str]:
        """Return the queues that its tasks are submitted to."""
        ...

    def entries(self) -> Sequence[TaskEntry]:
        """Return the entries of its tasks for the task catalog."""
        ...

    def adopt(self, settings: bytes) -> None:
        """Take over the worker's settings, as JSON, in a child process."""
        ...


class WorkerTasks:
    """All tasks of a worker. Tasks of the application override built-in tasks with the same name."""

    def __init__(self, settings: Settings, application: Application | None, runtime: "Runtime | None" = None) -> None:
        self._settings = settings
        self._application = application
        #: The runtime that the workflow and fan-out tasks submit through; None: these tasks are not offered.
        self._runtime = runtime

    def handlers(self) -> Mapping[str, Handler]:
        tasks = make_builtin_tasks(self._settings)
        egress = functools.cache(lambda: make_egress(self._settings.tasks))
        found = dict(tasks.handlers(egress, now=system_time))
        if self._runtime is not None:
            found[WORKFLOW] = make_workflow_handler(self._runtime)
            found |= make_fan_out_handlers(self._runtime)
        return found if self._application is None else found | dict(self._application.handlers())

    def entries(self) -> list[TaskEntry]:
        """Return the entries for the task catalog. Entries of the application replace those of built-in tasks."""
        found = {entry.name: entry for entry in make_builtin_tasks(self._settings).entries()}
        if self._runtime is not None:
            found |= {entry.name: entry for entry in (WORKFLOW_ENTRY, FAN_OUT_ENTRY)}
        if self._application is not None:
            found |= {entry.name: entry for entry in self._application.entries()}
        return list(found.values())

    def describe(self) -> str:
        """Return the number of tasks as text for the banner."""
        builtin = WorkerTasks(self._settings, None, self._runtime).handlers().keys()
        words = f"{len(builtin)} built-in tasks"
        if self._application is None:
            return words
        own = len(self._application.handlers().keys() - builtin)
        return f"{own} {'task' if own == 1 else 'tasks'} and {words}"

    def queues(self) -> Collection[str]:
        queues = {"default"} if self._application is None else set(self._application.queues())
        # Jobs with a script and no queue use this queue.
        queues |= {"default"} if self._settings.tasks.scripts else set()
        queues |= {QUEUE} if self._settings.events.webhooks else set()
        return queues | {NOTIFICATIONS} if self._settings.notifications.channels else queues

    def adopt(self, settings: bytes) -> None:
        if self._application is not None:
            self._application.adopt(settings)

    def hosting(self) -> AbstractAsyncContextManager[None] | None:
        return self._application.hosting() if isinstance(self._application, Host) else None


def make_builtin_tasks(settings: Settings) -> BuiltinTasks:
    """Build the built-in tasks that the settings allow."""
    tasks = settings.tasks
    return BuiltinTasks(
        http=tasks.http,
        scripts=Path(tasks.scripts).expanduser() if tasks.scripts else None,
        commands=tasks.commands,
        env=tasks.env,
        confinement=_make_confinement(tasks),
        containers=Containers(tasks.containers, tasks.images, network=tasks.network, limits=_make_limits(tasks)),
        keyring=make_keyring(settings),
        webhooks=read_webhooks(settings.events.webhooks),
        notifications=settings.notifications.read(),
        mail=SmtpMail(),
    )


def make_workflow_handler(runtime: "Runtime | Callable[[], Awaitable[Runtime]]") -> Handler:
    """Build the task ``workflow``, which submits through an open runtime, or through one that is opened on use."""

    async def opened() -> tuple[Jobs, Store]:
        found = runtime if isinstance(runtime, Runtime) else await runtime()
        return found.jobs, found.store

    async def invoke(held: HeldRun) -> bytes | None:
        # Imported here: the import is slow, and most processes create no workflows.
        from mainspring.features.workflows.task import build_workflow_handler

        return await build_workflow_handler(opened).invoke(held)

    return AsyncHandler(WORKFLOW, invoke, harmless=True)


def make_fan_out_handlers(runtime: "Runtime | Callable[[], Awaitable[Runtime]]") -> dict[str, Handler]:
    """Build the tasks ``fan_out`` and ``fan_in``, which submit through a runtime that is open or opened on use."""

    async def opened() -> tuple[Jobs, Store]:
        found = runtime if isinstance(runtime, Runtime) else await runtime()
        return found.jobs, found.store

    async def fan_out(held: HeldRun) -> bytes | None:
        from mainspring.features.fan_out.task import build_fan_out_handler

        return await build_fan_out_handler(opened).invoke(held)

    async def fan_in(held: HeldRun) -> bytes | None:
        from mainspring.features.fan_out.task import build_fan_in_handler

        return await build_fan_in_handler(opened).invoke(held)

    return {
        FAN_OUT: AsyncHandler(FAN_OUT, fan_out, harmless=True),
        FAN_IN: AsyncHandler(FAN_IN, fan_in, harmless=True),
    }


def make_keyring(settings: Settings) -> Keyring:
    """Build the sources of secrets, with the rules for their use."""
    section = settings.secrets
    sources: list[Secrets] = [EnvironmentSecrets()]
    if section.folder:
        sources.append(FolderSecrets(Path(section.folder).expanduser()))
    if settings.vault.address:
        sources.append(make_vault(settings.vault))
    return Keyring(ChainedSecrets(sources), SecretRules(section.allow))


@functools.cache
def make_vault(section: VaultSection) -> "VaultSecrets":
    """Build the client of Vault. A process shares one, because it caches the secrets."""
    import httpx2

    from mainspring.integrations.vault.secrets import AppRole, VaultSecrets

    def token() -> str:
        if section.token_file:
            return read_file("vault.token_file", section.token_file).decode().strip()
        if not (found := os.environ.get("VAULT_TOKEN", "")):
            raise Invalid("vault.token_file", "there is no token for Vault", "a file, VAULT_TOKEN, or vault.role_id")
        return found

    def secret_id() -> str:
        return read_file("vault.secret_id_file", section.secret_id_file).decode().strip()

    trusted = build_tls_context(Tls(authority=section.ca_file), "vault.ca_file") or True
    headers = {"X-Vault-Namespace": section.namespace} if section.namespace else {}
    return VaultSecrets(
        httpx2.Client(base_url=section.address, headers=headers, verify=trusted, trust_env=False),
        SystemClock(),
        AppRole(section.role_id, secret_id) if section.role_id else token,
        mount=section.mount,
        path=section.path,
        keep=section.keep,
    )


def _make_limits(tasks: TasksSection) -> Limits:
    return Limits(
        memory=tasks.memory,
        cpus=tasks.cpus,
        cpu_time=tasks.cpu_time,
        open_files=tasks.open_files,
        processes=tasks.processes,
    )


def _make_confinement(tasks: TasksSection) -> Confinement:
    return Confinement(_make_limits(tasks), user=tasks.user, cgroup=tasks.cgroup)


def examine_programs(tasks: TasksSection) -> list[Finding]:
    """Check that this machine enforces the limits of programs. Returns no findings without programs or limits."""
    confinement = _make_confinement(tasks)
    if not (tasks.scripts or tasks.commands) or not confinement.limits.by_cgroup:
        return []
    check = "limits of programs"
    if not (weak := confinement.weak_limits()):
        return [Finding(check=check, level=Level.OK, says="a cgroup enforces them on this machine")]
    says = "no cgroup (v2) on this machine enforces these: "
    return [
        Finding(
            check=check,
            level=Level.WARNING,
            says=says + "; ".join(f"{name}: {what}" for name, what in weak.items()),
            advice="give workers a cgroup (v2) with these controllers: tasks.cgroup",
        )
    ]


def check_environment(settings: Settings) -> None:
    """Check that the machine has what the worker's settings need."""
    tasks = settings.tasks
    for name, folder in (("tasks.scripts", tasks.scripts), ("secrets.folder", settings.secrets.folder)):
        if folder and not Path(folder).expanduser().is_dir():
            raise Invalid(name, f"{folder} is not a folder")
    _make_confinement(tasks).check()
    if tasks.containers:
        find_engine(tasks.containers)


def make_egress(tasks: TasksSection) -> Egress:
    """Build the guarded client for HTTP calls that users ask for."""
    # Imported here, because it takes 100 ms and most processes make no calls.
    from mainspring.integrations.egress.guarded import GuardedEgress

    return GuardedEgress(tasks.http_allow)
