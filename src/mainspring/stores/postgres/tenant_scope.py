"""The read-only store in the scope of one tenant."""

from mainspring.stores.postgres.database import Statements
from mainspring.stores.postgres.names import Names
from mainspring.stores.postgres.records.access import Access
from mainspring.stores.postgres.records.calendars import CalendarReads
from mainspring.stores.postgres.records.catalog import Catalog
from mainspring.stores.postgres.records.usage import UsageReading
from mainspring.stores.postgres.rows import Policies


class Seen(Catalog, UsageReading, Access, CalendarReads):
    """Reads only: the database role may not change anything."""

    def __init__(self, tenant: str | None, statements: Statements, names: Names, policies: Policies) -> None:
        self._bound_to = tenant
        self._db = statements
        self._names = names
        self._policies = policies
