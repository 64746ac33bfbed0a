"""What hurts a store while it works: what is new of it, and whether others should be spared."""

from collections.abc import Iterable, Mapping

from mainspring.core.model.cluster.diagnosis import Finding, Level

_ORDER = (Level.OK, Level.WARNING, Level.PROBLEM)
#: While one of these is bad, what can wait should: the server has no room, or dead rows pile up that it may not remove.
#: All of them pass. A server that is far away stays so: what waited for it to be near would wait for ever.
_PRESSING = frozenset({"transactions", "replication slots", "vacuum", "connections"})


def worst_of(findings: Iterable[Finding]) -> dict[str, Finding]:
    """The worst of each check."""
    worst: dict[str, Finding] = {}
    for finding in findings:
        known = worst.get(finding.check)
        if known is None or _ORDER.index(finding.level) > _ORDER.index(known.level):
            worst[finding.check] = finding
    return worst


def changed(before: Mapping[str, Finding], now: Mapping[str, Finding]) -> list[Finding]:
    """Those that have become better or worse, or are as bad by somebody else. What was never heard of was well."""
    return [finding for check, finding in now.items() if _told(finding) != _told(before.get(check))]


def _told(finding: Finding | None) -> tuple[Level, str]:
    if finding is None or finding.level is Level.OK:
        return Level.OK, ""
    return finding.level, finding.who


def is_pressed(findings: Iterable[Finding]) -> bool:
    return any(finding.check in _PRESSING and finding.level is not Level.OK for finding in findings)
