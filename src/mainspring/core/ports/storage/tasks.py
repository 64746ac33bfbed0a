"""The port for the task catalog: the tasks that workers have declared, with their options and arguments."""

from collections.abc import Sequence
from typing import Protocol

from mainspring.core.model.tasks.task_entry import KnownTask, TaskEntry


class TaskRegistry(Protocol):
    """One entry per task name, for all tenants. A task stays known even if no worker declares it any more."""

    async def register_tasks(self, entries: Sequence[TaskEntry], worker: str) -> int:
        """Store these entries, each as the newest version of its task. Returns how many were new or differed.

        An entry that is equal to the stored one changes nothing, not even who registered it and when.
        """
        ...

    async def list_tasks(self, after: int = 0) -> list[KnownTask]:
        """Return the entries with a ``rev`` greater than ``after``, by ``rev``. Unreadable entries are left out."""
        ...
