"""What the machine is, and what processes use of it."""

import contextlib
import os
import platform
import tempfile
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from bench.figures import Figures, percentile
from tools.services.local_postgres import DISK, physical_memory

_PROC = Path("/proc")
_PACKAGES = ("mainspring", "asyncpg", "uvloop", "apsw", "msgspec")


def scratch_parent() -> Path | None:
    """A place on a real disk: in memory a durable commit costs nothing."""
    return DISK if os.access(DISK, os.W_OK) else None


def facts() -> Figures:
    """Cores, memory, what one durable write costs, and versions."""
    versions: dict[str, str] = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "cores": cores(),
        "memory_gb": round(physical_memory() / (1 << 30), 1),
        "fdatasync_us": round(fdatasync_micros()),
        "system": f"{platform.system()} {platform.release()}",
        "load_average": round(os.getloadavg()[0], 2),
        "versions": versions,
    }


def describe(machine: Figures) -> str:
    versions = machine["versions"]
    assert isinstance(versions, dict)
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{machine['cores']} cores, {machine['memory_gb']} GB, fdatasync {machine['fdatasync_us']} µs, "
        f"{machine['system']}, load {machine['load_average']}; {said}"
    )


def cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def fdatasync_micros(times: int = 100) -> float:
    """The median of appending one page to a file and having it on disk."""
    page = os.urandom(8_192)
    sync = getattr(os, "fdatasync", os.fsync)
    with tempfile.TemporaryFile(dir=scratch_parent()) as file:
        took = []
        for _ in range(times):
            started = time.perf_counter_ns()
            os.write(file.fileno(), page)
            sync(file.fileno())
            took.append((time.perf_counter_ns() - started) / 1_000)
    return percentile(took, 50)


def resident_mb(pid: int) -> float | None:
    """Resident memory of a process; none where the system does not tell, or when it is gone."""
    try:
        pages = int((_PROC / str(pid) / "statm").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def processor_seconds(pid: int) -> float:
    """What a process has used of the processors; 0 where the system does not tell."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def family_processor_seconds(pid: int) -> float:
    """The same for a process with its children, those that have ended included: a database server."""
    fields = _stat(pid)
    if not fields:
        return 0.0
    own = sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return own + sum(processor_seconds(child) for child in children_of(pid))


def children_of(pid: int) -> Iterable[int]:
    for entry in _PROC.glob("[0-9]*"):
        fields = _stat(int(entry.name))
        if fields and int(fields[1]) == pid:
            yield int(entry.name)


def free_bytes(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def _stat(pid: int) -> list[str]:
    """The fields of /proc/…/stat after the name, which may hold anything."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
