"""What the sidebar leads to."""

from typing import NamedTuple

from mainspring.core.model.access.access import Permission


class Section(NamedTuple):
    #: As pages name it, and as its icon in ``templates/icons.html`` is called.
    name: str
    title: str
    #: Below the base.
    path: str
    #: After ``g`` on the keyboard.
    key: str
    #: What it stands below.
    group: str = ""
    #: For whom it is there.
    permission: Permission = Permission.READ


SECTIONS = (
    Section("overview", "Overview", "", "o"),
    Section("jobs", "Jobs", "jobs", "j"),
    Section("runs", "Runs", "runs", "r"),
    Section("tasks", "Tasks", "tasks", "b"),
    Section("workflows", "Workflows", "workflows", "w"),
    Section("calendar", "Calendar", "calendar", "c"),
    Section("dead-letters", "Dead letters", "dead-letters", "d"),
    Section("queues", "Queues", "queues", "q"),
    Section("workers", "Workers", "workers", "k", "Cluster"),
    Section("schedulers", "Schedulers", "schedulers", "s", "Cluster"),
    Section("datacenters", "Data centres", "datacenters", "e", "Cluster"),
    Section("notifications", "Notifications", "notifications", "n", "Administration", Permission.ADMINISTER_ALL),
    Section("tenants", "Tenants", "tenants", "t", "Administration", Permission.ADMINISTER_ALL),
    Section("audit", "Audit", "audit", "a", "Administration", Permission.ADMINISTER),
    Section("keys", "Keys", "keys", "y", "Administration", Permission.ADMINISTER),
    Section("system", "System", "system", "m", "Administration", Permission.ADMINISTER_ALL),
)

#: A phone has room for so many, and leads to the others by one button.
ON_A_PHONE = ("overview", "jobs", "runs", "dead-letters")
