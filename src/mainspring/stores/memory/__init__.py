"""The store in memory: the reference behaviour, the test double and the engine of the simulation."""

from mainspring.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
