"""The list of API resources, in the order of the documentation."""

from mainspring.features.access.operations import access
from mainspring.features.alerts.operations import notifications
from mainspring.features.autoscale.operations import autoscaling
from mainspring.features.broadcasts.operations import broadcasts
from mainspring.features.bulk.operations import bulk
from mainspring.features.calendars.operations import calendars
from mainspring.features.data_centers.operations import datacenters
from mainspring.features.dead_letters.operations.groups import dead_letters
from mainspring.features.dead_letters.operations.replays import replays
from mainspring.features.drill.operations import drills
from mainspring.features.events.operations import events
from mainspring.features.explain.operations import explanations
from mainspring.features.forecast.operations import forecasts
from mainspring.features.jobs.operations.batches import batches
from mainspring.features.jobs.operations.job import one_job
from mainspring.features.jobs.operations.jobs import jobs
from mainspring.features.jobs.operations.previews import previews
from mainspring.features.jobs.operations.runs import runs_of_jobs
from mainspring.features.jobs.operations.versions import versions
from mainspring.features.queues.operations.policies import policies
from mainspring.features.queues.operations.queues import queues
from mainspring.features.runs.operations import runs
from mainspring.features.schedules.operations import schedules
from mainspring.features.stats.operations import stats
from mainspring.features.system.operations import system
from mainspring.features.tasks.operations import tasks
from mainspring.features.usage.operations import usage
from mainspring.features.workers.operations.processes import processes
from mainspring.features.workers.operations.remote_claims import remote_claims
from mainspring.features.workers.operations.remote_reports import remote_reports
from mainspring.features.workers.operations.remote_sessions import remote_sessions
from mainspring.features.workflows.operations.parts import workflow_parts
from mainspring.features.workflows.operations.workflows import workflows
from mainspring.http.health_operations import health
from mainspring.http.operation import Resource

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
    Resource(
        "Remote workers",
        "The protocol of workers in any language: register, claim, heartbeat, report. `curl` is enough.",
        parts=(remote_sessions, remote_claims, remote_reports),
    ),
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
