"""HTTP operations on the system: settings and versions of a process, and findings of the doctor."""

import asyncio
import platform
from importlib import metadata
from typing import Literal

from mainspring.core.model.access.access import Permission
from mainspring.core.model.cluster.diagnosis import Level
from mainspring.core.model.schedules.cron import find_zone_database
from mainspring.core.runtime.build import read_build
from mainspring.http.context import Api
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.schemas.common import Wire

system = Resource("System", "Settings, versions and findings. Requires an administrator of all tenants.")


class SettingOut(Wire):
    name: str
    value: str
    """As it is written in a settings file. For a secret, only a placeholder shows that it is set."""
    changed: bool = False
    """Whether it was set and differs from the default."""


class SystemOut(Wire):
    """The API process that answers. Other processes may have other settings."""

    version: str
    commit: str
    """The commit that it was built from, with a plus if the files were changed since. Empty if unknown."""
    python: str
    platform: str
    tzdata: str
    """The version of its time zone database, and whether that is the `tzdata` package or the system's."""
    settings: list[SettingOut]


class FindingOut(Wire):
    check: str
    level: Literal["ok", "warning", "problem"]
    says: str
    advice: str = ""


class DoctorOut(Wire):
    problems: int
    warnings: int
    findings: list[FindingOut]


@system.operation("GET", "/v1/system", permission=Permission.ADMINISTER_ALL, answers={200: SystemOut})
async def show_system(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Get versions and settings of the process that answers.

    Secrets are left out. Needs a key that is bound to no tenant.
    """
    settings = [] if api.system is None else api.system.settings()
    return Answer(
        200,
        SystemOut(
            version=metadata.version("mainspring"),
            commit=(await asyncio.to_thread(read_build)).commit,
            python=platform.python_version(),
            platform=platform.platform(terse=True),
            tzdata=str(find_zone_database()),
            settings=[SettingOut(name=one.name, value=one.value, changed=one.changed) for one in settings],
        ),
    )


@system.operation("GET", "/v1/doctor", permission=Permission.ADMINISTER_ALL, answers={200: DoctorOut})
async def consult_doctor(api: Api, call: Call[Empty, Empty]) -> Answer:
    """List problems and what to do about them.

    Returns the findings of `mainspring doctor`, and changes nothing.
    """
    findings = await api.findings.get()
    levels = [finding.level for finding in findings]
    return Answer(
        200,
        DoctorOut(
            problems=levels.count(Level.PROBLEM),
            warnings=levels.count(Level.WARNING),
            findings=[
                FindingOut(check=one.check, level=one.level.value, says=one.says, advice=one.advice) for one in findings
            ],
        ),
    )
