"""The store in memory: the reference behaviour, the test double and the engine of the simulation."""

from mainspring.adapters.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
