"""Findings about a store in operation: what has changed, and whether deferrable work should wait."""

from collections.abc import Iterable, Mapping

from mainspring.core.model.cluster.diagnosis import Finding, Level

_ORDER = (Level.OK, Level.WARNING, Level.PROBLEM)
#: While one of these checks fails, deferrable work should wait: the server has no room, or dead rows accumulate that it
#: may not remove. These conditions are temporary. A high network latency is not, so the work would wait forever.
_PRESSING = frozenset({"transactions", "replication slots", "vacuum", "connections"})


def find_worst(findings: Iterable[Finding]) -> dict[str, Finding]:
    """Return the worst finding of each check."""
    worst: dict[str, Finding] = {}
    for finding in findings:
        known = worst.get(finding.check)
        if known is None or _ORDER.index(finding.level) > _ORDER.index(known.level):
            worst[finding.check] = finding
    return worst


def changed(before: Mapping[str, Finding], now: Mapping[str, Finding]) -> list[Finding]:
    """Return the findings whose level or culprit has changed. A check without an earlier finding counts as OK."""
    return [finding for check, finding in now.items() if _comparable(finding) != _comparable(before.get(check))]


def _comparable(finding: Finding | None) -> tuple[Level, str]:
    if finding is None or finding.level is Level.OK:
        return Level.OK, ""
    return finding.level, finding.who


def is_pressed(findings: Iterable[Finding]) -> bool:
    return any(finding.check in _PRESSING and finding.level is not Level.OK for finding in findings)
