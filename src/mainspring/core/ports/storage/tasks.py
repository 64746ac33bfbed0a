"""The task catalog: what workers declare of the tasks that they run."""

from collections.abc import Sequence
from typing import Protocol

from mainspring.core.model.tasks.task_entry import KnownTask, TaskEntry


class TaskRegistry(Protocol):
    """One entry for each task name, of no tenant. A task that no worker declares any more stays known."""

    async def register_tasks(self, entries: Sequence[TaskEntry], worker: str) -> int:
        """Keep these entries, each as the newest version of its task. Returns how many were new or differed.

        An entry that is equal to the kept one changes nothing, not even who registered it and when.
        """
        ...

    async def list_tasks(self, after: int = 0) -> list[KnownTask]:
        """The entries whose ``rev`` is greater than ``after``, by ``rev``. An unreadable entry is left out."""
        ...
