"""The store as the people of one tenant see it."""

from mainspring.adapters.store.postgres.access import Access
from mainspring.adapters.store.postgres.calendars import CalendarReads
from mainspring.adapters.store.postgres.catalog import Catalog
from mainspring.adapters.store.postgres.database import Statements
from mainspring.adapters.store.postgres.names import Names
from mainspring.adapters.store.postgres.rows import Policies
from mainspring.adapters.store.postgres.usage import UsageReading


class Seen(Catalog, UsageReading, Access, CalendarReads):
    """Reads only: the role may not change anything."""

    def __init__(self, tenant: str | None, statements: Statements, names: Names, policies: Policies) -> None:
        self._bound_to = tenant
        self._db = statements
        self._names = names
        self._policies = policies
