"""The built-in tasks that are enabled by the settings."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from mainspring.core.model.alerts.notification_rules import NotificationRules
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.core.model.base.secrets import mentions
from mainspring.core.model.events.webhooks import Webhook
from mainspring.core.model.runs.reserved import NOTIFICATION, WEBHOOK
from mainspring.core.model.tasks.argument_schema import describe_arguments
from mainspring.core.model.tasks.task_entry import TaskEntry
from mainspring.core.ports.egress import Egress
from mainspring.core.ports.mail import Mail
from mainspring.core.worker.builtin import container, http, notification, shell, webhook
from mainspring.core.worker.builtin.confinement import Confinement
from mainspring.core.worker.handler import Handler
from mainspring.core.worker.secrets import NO_SECRETS, Keyring


class BuiltinTasks:
    """The built-in tasks. A worker uses their handlers; processes that accept jobs use ``check`` for payloads."""

    #: The names of all built-in tasks, also of those that are off.
    ALL = frozenset({http.TASK, shell.TASK, container.TASK})

    def __init__(
        self,
        *,
        http: bool = True,
        scripts: Path | None = None,
        commands: bool | Mapping[str, Sequence[str]] = False,
        env: Collection[str] = (),
        grace: Micros = 2 * SECOND,
        confinement: Confinement | None = None,
        containers: container.Containers | None = None,
        keyring: Keyring = NO_SECRETS,
        webhooks: Sequence[Webhook] = (),
        notifications: NotificationRules | None = None,
        mail: Mail | None = None,
    ) -> None:
        self._http = http
        self._shell = shell.Shell(scripts, commands=commands, env=env, grace=grace, confinement=confinement)
        self._containers = containers or container.Containers()
        self._keyring = keyring
        self._webhooks = {each.name: each for each in webhooks}
        self._notifications = notifications or NotificationRules()
        self._mail = mail

    @property
    def names(self) -> list[str]:
        """The names of those that are on."""
        on = ((http.TASK, self._http), (shell.TASK, self._shell.on), (container.TASK, self._containers.on))
        return [name for name, is_on in on if is_on]

    def entries(self) -> list[TaskEntry]:
        """Return the entries that a worker registers in the task catalog. ``check`` is stricter than their schemas."""
        described: tuple[tuple[str, type[msgspec.Struct], str], ...] = (
            (http.TASK, http.HttpCall, "Call a URL."),
            (shell.TASK, shell.ShellCall, "Run a script or a command."),
            (container.TASK, container.ContainerCall, "Run an image in a container."),
        )
        return [
            TaskEntry(name=name, description=words, arguments=describe_arguments(shape), checked=False)
            for name, shape, words in described
            if name in self.names
        ]

    def check(self, task: str, payload: bytes, tenant: str = "default") -> None:
        """Raise ``Invalid`` if this is a built-in task that is off, or that could never run with this payload.

        Does nothing for other tasks. Do not call it if the application has its own task with one of these names.
        """
        if task == shell.TASK:
            self._shell.check(payload)
        elif task == container.TASK:
            self._containers.check(payload)
        elif task == http.TASK:
            if not self._http:
                raise Invalid("task", "calling URLs is off here", "tasks.http = true")
            call = http.read_call(payload)
            if call.sign:
                self._keyring.check_name("payload.sign", tenant, call.sign)
        else:
            return
        if mentions(payload):
            self._keyring.check(tenant, msgspec.json.decode(payload))

    def handlers(
        self, egress: Callable[[], Egress], *, now: Callable[[], Instant] = lambda: 0
    ) -> Mapping[str, Handler]:
        """Return the handlers.

        ``egress`` opens the HTTP client on first use; ``now`` is the time used in signatures.
        """
        found: dict[str, Handler] = {}
        if self._http:
            found[http.TASK] = http.http_handler(egress, self._keyring, now)
        if self._shell.on:
            found[shell.TASK] = self._shell.handler(self._keyring)
        if self._containers.on:
            found[container.TASK] = self._containers.handler(self._keyring)
        if self._webhooks:
            found[WEBHOOK] = webhook.webhook_handler(self._webhooks, egress, self._keyring, now)
        if self._notifications.channels:
            channels = self._notifications.channels
            passing = notification.AlertRelay(egress, self._mail, self._keyring, now)
            found[NOTIFICATION] = notification.notification_handler(channels, passing)
        return found
