"""The list of dashboard pages. Each module has the pages of one topic, with their API requests and templates."""

from mainspring.features.access.pages.audit import audit
from mainspring.features.access.pages.keys import keys
from mainspring.features.access.pages.tenants import tenants
from mainspring.features.alerts.pages import notifications
from mainspring.features.calendars.pages import calendar
from mainspring.features.data_centers.pages import datacenters
from mainspring.features.dead_letters.pages.groups import dead_letters
from mainspring.features.dead_letters.pages.replays import replays
from mainspring.features.events.pages import live
from mainspring.features.jobs.pages.bulk import jobs_bulk
from mainspring.features.jobs.pages.form import job_form
from mainspring.features.jobs.pages.job import job
from mainspring.features.jobs.pages.jobs import jobs
from mainspring.features.overview.pages import overview
from mainspring.features.queues.pages import queues
from mainspring.features.runs.pages.family import family
from mainspring.features.runs.pages.run import run
from mainspring.features.runs.pages.runs import runs
from mainspring.features.system.pages import system
from mainspring.features.tasks.pages import tasks
from mainspring.features.workers.pages import processes
from mainspring.features.workflows.pages import workflows
from mainspring.web.page import Page
from mainspring.web.sign_in import sign_in

#: If several paths match, the first one wins.
_PARTS = (
    overview,
    jobs,
    jobs_bulk,
    job_form,
    job,
    runs,
    run,
    family,
    tasks,
    workflows,
    calendar,
    live,
    sign_in,
    dead_letters,
    replays,
    queues,
    processes,
    datacenters,
    notifications,
    tenants,
    audit,
    keys,
    system,
)

PAGES: tuple[Page, ...] = tuple(page for part in _PARTS for page in part.pages)
