"""The store as the API uses it."""

from typing import Protocol

from mainspring.core.ports.events_out import EventFacts
from mainspring.core.ports.storage.access import Access
from mainspring.core.ports.storage.catalog import Catalog, Reports
from mainspring.core.ports.storage.dead_letters import DeadLetters
from mainspring.core.ports.storage.explaining import ExplanationReads
from mainspring.core.ports.storage.leases import Leases
from mainspring.core.ports.storage.notifications import NotificationStore
from mainspring.core.ports.storage.operations import Operations
from mainspring.core.ports.storage.usage import BudgetStore
from mainspring.core.store import Store


class ApiStore(
    Store,
    Catalog,
    ExplanationReads,
    BudgetStore,
    Operations,
    Access,
    Reports,
    DeadLetters,
    Leases,
    EventFacts,
    NotificationStore,
    Protocol,
):
    """The parts of the store that the API uses."""
