"""Every page. A file here has the pages of one thing: what is asked of the API, and what is made of it."""

from mainspring.ui.page import Page
from mainspring.ui.pages.audit import audit
from mainspring.ui.pages.calendar import calendar
from mainspring.ui.pages.datacenters import datacenters
from mainspring.ui.pages.dead_letters import dead_letters
from mainspring.ui.pages.family import family
from mainspring.ui.pages.job import job
from mainspring.ui.pages.job_form import job_form
from mainspring.ui.pages.jobs import jobs
from mainspring.ui.pages.jobs_bulk import jobs_bulk
from mainspring.ui.pages.keys import keys
from mainspring.ui.pages.live import live
from mainspring.ui.pages.notifications import notifications
from mainspring.ui.pages.overview import overview
from mainspring.ui.pages.processes import processes
from mainspring.ui.pages.queues import queues
from mainspring.ui.pages.replays import replays
from mainspring.ui.pages.run import run
from mainspring.ui.pages.runs import runs
from mainspring.ui.pages.sign_in import sign_in
from mainspring.ui.pages.system import system
from mainspring.ui.pages.tasks import tasks
from mainspring.ui.pages.tenants import tenants
from mainspring.ui.pages.workflows import workflows

#: Of several paths that match, the first.
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
