"""Pages of the system: settings, versions, and the findings of the doctor."""

import asyncio
from collections import Counter
from typing import Any

from mainspring.core.model.access.access import Permission
from mainspring.features.system.operations import SystemOut, consult_doctor, show_system
from mainspring.web.page import Pages, Reply, Visit

system = Pages()


@system.page("GET", "/system", permission=Permission.ADMINISTER_ALL)
async def show_system_page(visit: Visit[Any]) -> Reply:
    found, workers, schedulers = await asyncio.gather(
        visit.ask(show_system), visit.ask("list_workers"), visit.ask("list_schedulers")
    )
    system: SystemOut = found
    versions = Counter(one.version or "unknown" for one in (*workers.items, *schedulers.items))
    return visit.show(
        "system/page.html",
        system=system,
        said=[setting for setting in system.settings if setting.changed],
        others=[setting for setting in system.settings if not setting.changed],
        versions=versions.most_common(),
    )


@system.page("GET", "/system/findings", permission=Permission.ADMINISTER_ALL)
async def show_findings(visit: Visit[Any]) -> Reply:
    """Render the findings. The page loads them separately, because the doctor takes longer than a page may."""
    found = await visit.ask(consult_doctor)
    order = {"problem": 0, "warning": 1, "ok": 2}
    return visit.show(
        "system/findings.html", found=found, findings=sorted(found.findings, key=lambda one: order[one.level])
    )
