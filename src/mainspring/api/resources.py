"""Every resource of the API, in the order in which people read about them."""

from mainspring.api.routes.access import access
from mainspring.api.routes.broadcasts import broadcasts
from mainspring.api.routes.dead_letters import dead_letters
from mainspring.api.routes.events import events
from mainspring.api.routes.health import health
from mainspring.api.routes.jobs import jobs
from mainspring.api.routes.queues import processes, queues
from mainspring.api.routes.remote import remote
from mainspring.api.routes.runs import runs
from mainspring.api.routes.schedules import schedules
from mainspring.api.routes.stats import bulk, stats

RESOURCES = (
    jobs,
    schedules,
    broadcasts,
    runs,
    dead_letters,
    queues,
    processes,
    remote,
    events,
    stats,
    bulk,
    access,
    health,
)
