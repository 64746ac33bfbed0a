"""The application of a Django project: its settings, and submits within Django's transactions."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from django.conf import settings as django_settings

from mainspring.config.loading import load
from mainspring.config.runtime import Runtime
from mainspring.config.settings import Settings
from mainspring.contrib.django.connections import around_run
from mainspring.contrib.django.database import atomic_connection, database_store
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.runs.names import check_name, check_tenant
from mainspring.sdk.app import Mainspring
from mainspring.sdk.calls.options import PreparedCall
from mainspring.sdk.handle import SyncHandle

T = TypeVar("T")

SETTING = "MAINSPRING"
#: Entries of the dictionary that configure the application and are not settings.
_OWN = ("name", "tenant")


class DjangoMainspring(Mainspring):
    """An application with its settings from Django, and its store from ``DATABASES`` if none is set."""

    def __init__(self) -> None:
        try:
            names = _names(_configured())
            super().__init__(tenant=names.get("tenant", "default"), name=names.get("name") or _project())
        except Invalid:
            # Django's checks, and everything that reads the settings, report the error.
            super().__init__(name=_project())
        self.around(around_run)

    def settings(self, flags: Mapping[str, object] | None = None, file: Path | None = None) -> Settings:
        """Load the settings. Precedence: flags, Django's ``MAINSPRING``, the environment, the file, ``DATABASES``."""
        if self._completed is not None and flags is None and file is None:
            return self._completed
        configured = _configured()
        _names(configured)
        own = {name: value for name, value in configured.items() if name not in _OWN}
        defaults = {} if "store" in own else {"store": database_store()}
        return load(flags, file=file, defaults=defaults, code=(SETTING, own))

    def submit_many_sync(
        self, calls: Iterable[PreparedCall[T]], *, connection: object | None = None
    ) -> list[SyncHandle[T]]:
        """Submit as ``submit_many`` does, for blocking code.

        Inside ``transaction.atomic()`` the calls are committed with the transaction, if the store is Django's default
        database.
        """
        wanted = list(calls)
        if connection is None and not any(call.options.connection is not None for call in wanted):
            connection = self._atomic_connection()
        return super().submit_many_sync(wanted, connection=connection)

    def _new_runtime(self) -> Runtime:
        if self._completed is None and self.settings().store == "memory:":
            # In a test database nothing would ever run without a worker in this process.
            raise Invalid("store", "memory: reaches no worker from here", "in a test, MainspringTestMixin runs tasks")
        return super()._new_runtime()

    def _atomic_connection(self) -> object | None:
        # A test in virtual time uses the memory store.
        found = None if self._test_runtime is not None else atomic_connection()
        return found if found is not None and self.settings().store == database_store() else None


def _configured() -> Mapping[str, Any]:
    configured = getattr(django_settings, SETTING, {})
    if not isinstance(configured, Mapping):
        raise Invalid(SETTING, f"{configured!r:.40} is not a dictionary", 'for example {"worker.queues": "mail:20"}')
    return configured


def _names(configured: Mapping[str, Any]) -> dict[str, str]:
    """Return the entries that configure the application."""
    names = {name: configured[name] for name in _OWN if name in configured}
    for name, value in names.items():
        check = check_tenant if name == "tenant" else check_name
        check(f"{SETTING}: {name}", value)
    return names


def _project() -> str:
    """Return the package of the settings module."""
    module: str = getattr(django_settings, "SETTINGS_MODULE", None) or "django"
    return module.partition(".")[0]
