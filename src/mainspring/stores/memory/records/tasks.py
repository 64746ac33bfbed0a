"""Memory store: the task catalog."""

from collections.abc import Sequence

from mainspring.core.model.tasks.task_entry import KnownTask, TaskEntry, check_registration
from mainspring.stores.memory.tables import Tables


class MemoryTasks:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def register_tasks(self, entries: Sequence[TaskEntry], worker: str) -> int:
        check_registration(entries, worker)
        tasks = self._tables.tasks
        with self._tables.transaction() as now:
            changed = [entry for entry in entries if entry.name not in tasks or tasks[entry.name].entry != entry]
            rev = max((known.rev for known in tasks.values()), default=0)
            for number, entry in enumerate(changed, rev + 1):
                version = tasks[entry.name].version + 1 if entry.name in tasks else 1
                tasks[entry.name] = KnownTask(
                    entry=entry, version=version, rev=number, registered_by=worker, registered_at=now
                )
            return len(changed)

    async def list_tasks(self, after: int = 0) -> list[KnownTask]:
        known = self._tables.tasks.values()
        return sorted((task for task in known if task.rev > after), key=lambda task: task.rev)
