"""The sections of the sidebar."""

from typing import NamedTuple

from mainspring.core.model.access.access import Permission


class Section(NamedTuple):
    #: The name that pages use, and the name of its icon in ``templates/icons.html``.
    name: str
    title: str
    #: The path relative to the base.
    path: str
    #: The key that opens the section after ``g``.
    key: str
    #: The heading above the section.
    group: str = ""
    #: The section is shown to people with this permission.
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
    Section("datacenters", "Data centers", "datacenters", "e", "Cluster"),
    Section("notifications", "Notifications", "notifications", "n", "Administration", Permission.ADMINISTER_ALL),
    Section("tenants", "Tenants", "tenants", "t", "Administration", Permission.ADMINISTER_ALL),
    Section("audit", "Audit", "audit", "a", "Administration", Permission.ADMINISTER),
    Section("keys", "Keys", "keys", "y", "Administration", Permission.ADMINISTER),
    Section("system", "System", "system", "m", "Administration", Permission.ADMINISTER_ALL),
)

#: The sections that a phone has room for. One button leads to the others.
ON_A_PHONE = ("overview", "jobs", "runs", "dead-letters")
