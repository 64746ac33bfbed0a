"""The memory store: the reference behavior, the test double, and the store of the simulation."""

from mainspring.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
