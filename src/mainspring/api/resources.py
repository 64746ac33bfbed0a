"""Every resource of the API, in the order in which people read about them."""

from mainspring.api.operation import Resource
from mainspring.api.routes.access import access
from mainspring.api.routes.autoscale import autoscaling
from mainspring.api.routes.broadcasts import broadcasts
from mainspring.api.routes.bulk import bulk
from mainspring.api.routes.calendars import calendars
from mainspring.api.routes.datacenters import datacenters
from mainspring.api.routes.dead_letters import dead_letters
from mainspring.api.routes.drills import drills
from mainspring.api.routes.events import events
from mainspring.api.routes.explain import explanations
from mainspring.api.routes.forecast import forecasts
from mainspring.api.routes.health import health
from mainspring.api.routes.job import one_job
from mainspring.api.routes.job_batches import batches
from mainspring.api.routes.job_preview import previews
from mainspring.api.routes.job_runs import runs_of_jobs
from mainspring.api.routes.job_versions import versions
from mainspring.api.routes.jobs import jobs
from mainspring.api.routes.notifications import notifications
from mainspring.api.routes.processes import processes
from mainspring.api.routes.queue_policies import policies
from mainspring.api.routes.queues import queues
from mainspring.api.routes.remote import remote
from mainspring.api.routes.replays import replays
from mainspring.api.routes.runs import runs
from mainspring.api.routes.schedules import schedules
from mainspring.api.routes.stats import stats
from mainspring.api.routes.system import system
from mainspring.api.routes.tasks import tasks
from mainspring.api.routes.usage import usage
from mainspring.api.routes.workflow_parts import workflow_parts
from mainspring.api.routes.workflows import workflows

RESOURCES = (
    Resource(
        "Jobs",
        "Define work: what to run, when, and with which policies. A one-off job and its run have the same id.",
        parts=(jobs, batches, previews, one_job, runs_of_jobs, versions),
    ),
    tasks,
    schedules,
    calendars,
    broadcasts,
    Resource(
        "Workflows",
        "Submit jobs together as named nodes, some of which depend on others.",
        parts=(workflows, workflow_parts),
    ),
    runs,
    explanations,
    dead_letters,
    replays,
    queues,
    policies,
    processes,
    datacenters,
    autoscaling,
    remote,
    drills,
    events,
    notifications,
    stats,
    forecasts,
    usage,
    bulk,
    access,
    system,
    health,
)
