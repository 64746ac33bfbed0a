"""The read-only store in the scope of one tenant."""

from mainspring.stores.postgres.database import StatementRunner
from mainspring.stores.postgres.names import NameCache
from mainspring.stores.postgres.records.access import AccessMixin
from mainspring.stores.postgres.records.calendars import CalendarReadMixin
from mainspring.stores.postgres.records.catalog import CatalogMixin
from mainspring.stores.postgres.records.usage import UsageReadMixin
from mainspring.stores.postgres.rows import PolicyCodec


class PostgresTenantScope(CatalogMixin, UsageReadMixin, AccessMixin, CalendarReadMixin):
    """Reads only: the database role may not change anything."""

    def __init__(
        self, tenant: str | None, statements: StatementRunner, names: NameCache, policies: PolicyCodec
    ) -> None:
        self._bound_to = tenant
        self._db = statements
        self._names = names
        self._policies = policies
