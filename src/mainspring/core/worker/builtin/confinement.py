"""The user and the resource limits of programs that tasks run."""

import os
import pwd
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.runtime.log import get_logger
from mainspring.core.worker.builtin.process import ProgramSpec

_log = get_logger("mainspring.shell")
_PERIOD = 100_000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one program with all its processes, as far as the system can measure that. 0: no limit."""

    #: Bytes.
    memory: int = 0
    #: Processors, possibly fractional, as in 0.5.
    cpus: float = 0
    #: Processor time.
    cpu_time: Micros = 0
    open_files: int = 0
    processes: int = 0

    @property
    def by_cgroup(self) -> dict[str, str]:
        """The limits that a cgroup enforces, by controller."""
        found = {}
        if self.memory:
            found["memory"] = str(self.memory)
        if self.cpus:
            found["cpu"] = f"{max(1_000, round(self.cpus * _PERIOD))} {_PERIOD}"
        if self.processes:
            found["pids"] = str(self.processes)
        return found


class Confinement:
    """Turns limits into orders for the launcher. The available cgroups are detected when the first program starts."""

    def __init__(self, limits: Limits | None = None, *, user: str = "", cgroup: str = "") -> None:
        self.limits = limits or Limits()
        self._user = user
        self._cgroup = cgroup
        self._home: tuple[Path | None, frozenset[str]] | None = None

    def check(self) -> None:
        """Raise ``Invalid`` if programs could never be started with these settings."""
        if self._user:
            _entry(self._user)
            if os.geteuid() != 0 and pwd.getpwnam(self._user).pw_uid != os.geteuid():
                raise Invalid("tasks.user", "only a worker that runs as root can run programs as somebody else")
        if self._cgroup and not _writable(Path(self._cgroup)):
            raise Invalid("tasks.cgroup", f"{self._cgroup} is not a cgroup (v2) that the worker may write to")

    def order(self, name: str, argv: Sequence[str], environment: Mapping[str, str], folder: Path) -> ProgramSpec:
        home, controllers = self._find()
        wanted = self.limits.by_cgroup
        files = {"memory": "memory.max", "cpu": "cpu.max", "pids": "pids.max"}
        held = {files[each]: value for each, value in wanted.items() if each in controllers}
        if "memory.max" in held:
            # Otherwise swapped-out memory would not count toward the limit.
            held["memory.swap.max"] = "0"
            held["memory.oom.group"] = "1"
        identity: Sequence[int] = ()
        if self._user:
            entry = _entry(self._user)
            identity = (entry.pw_uid, entry.pw_gid, *os.getgrouplist(self._user, entry.pw_gid))
            environment = {**environment, "HOME": entry.pw_dir, "USER": self._user}
        return ProgramSpec(
            argv=argv,
            environment=environment,
            folder=str(folder),
            identity=identity if os.geteuid() == 0 else (),
            limits=self._resource_limits(controllers),
            processes=0 if "pids" in controllers else self.limits.processes,
            cgroup="" if home is None else str(home / name),
            cgroup_limits=held,
        )

    def _resource_limits(self, controllers: frozenset[str]) -> dict[str, int]:
        limits = self.limits
        found = {"CPU": -(-limits.cpu_time // SECOND), "NOFILE": limits.open_files}
        if "memory" not in controllers:
            found["AS"] = limits.memory
        if "pids" not in controllers and not self._runs_as_root:
            found["NPROC"] = limits.processes
        return {name: value for name, value in found.items() if value}

    @property
    def _runs_as_root(self) -> bool:
        """The kernel does not apply RLIMIT_NPROC to root."""
        return os.geteuid() == 0 and (not self._user or _entry(self._user).pw_uid == 0)

    def weak_limits(self) -> dict[str, str]:
        """Return the settings whose limit no cgroup enforces, each with what applies instead. Changes nothing."""
        wanted = self.limits.by_cgroup
        home = self._cgroup_home(wanted)
        return self._describe(wanted.keys() - (frozenset() if home is None else _offered(home)))

    def _describe(self, missing: Collection[str]) -> dict[str, str]:
        what = {
            "cpu": ("tasks.cpus", "not enforced"),
            "memory": ("tasks.memory", "applies to each process (RLIMIT_AS), not to their sum"),
            "pids": ("tasks.processes", self._describe_processes()),
        }
        return dict(sorted(what[controller] for controller in missing))

    def _describe_processes(self) -> str:
        counted = "a program seen with more processes is killed"
        by_user = f"all processes of user {self._user or os.geteuid()} count together (RLIMIT_NPROC)"
        if self._runs_as_root:
            return counted if sys.platform == "linux" else "not enforced: RLIMIT_NPROC does not bind root"
        return f"{by_user}; {counted}" if sys.platform == "linux" else by_user

    @property
    def counts_memory(self) -> bool:
        """Whether the kernel kills programs that exceed a memory limit of their cgroup."""
        return "memory" in self._find()[1]

    def _cgroup_home(self, wanted: Mapping[str, str]) -> Path | None:
        if not self._cgroup and not wanted:
            return None
        home = Path(self._cgroup) if self._cgroup else own_cgroup()
        return home if home is not None and _writable(home) else None

    def _find(self) -> tuple[Path | None, frozenset[str]]:
        """Return the folder in which cgroups are created, if any, and the controllers they have."""
        if self._home is None:
            wanted = self.limits.by_cgroup
            self._home = (None, frozenset())
            if (home := self._cgroup_home(wanted)) is not None:
                held = _enable(home, wanted)
                if self._cgroup or held:
                    self._home = (home, held)
            if missing := wanted.keys() - self._home[1]:
                _log.warning(
                    "no cgroup (v2) enforces these limits of programs",
                    cgroup=str(self._home[0] or "none"),
                    **self._describe(missing),
                )
        return self._home


def own_cgroup(proc: Path = Path("/proc/self")) -> Path | None:
    """Return the folder of the worker's own cgroup (v2)."""
    try:
        mounts = [line.split() for line in (proc / "mounts").read_text().splitlines()]
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return None
    folder = next((words[1] for words in mounts if words[2] == "cgroup2"), None)
    inside = next((line[3:] for line in lines if line.startswith("0::")), None)
    return None if folder is None or inside is None else Path(folder) / inside.lstrip("/")


def _writable(folder: Path) -> bool:
    return (folder / "cgroup.procs").exists() and os.access(folder, os.W_OK)


def _enable(folder: Path, wanted: Mapping[str, str]) -> frozenset[str]:
    """Enable these controllers for cgroups in this folder, and return those that are enabled.

    The kernel refuses this if the folder itself contains processes.
    """
    control = folder / "cgroup.subtree_control"
    for name in wanted:
        try:
            control.write_text(f"+{name}")
        except OSError:
            continue
    try:
        return frozenset(control.read_text().split()) & wanted.keys()
    except OSError:
        return frozenset()


def _offered(folder: Path) -> frozenset[str]:
    """Return the controllers that cgroups in this folder have, or will have once a worker enables them."""
    try:
        enabled = (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        enabled = []
    try:
        # The kernel refuses to enable more while the folder itself contains processes.
        occupied = bool((folder / "cgroup.procs").read_text().strip())
        available = [] if occupied else (folder / "cgroup.controllers").read_text().split()
    except OSError:
        available = []
    return frozenset([*enabled, *available])


def _entry(user: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(user)
    except KeyError:
        raise Invalid("tasks.user", f"there is no user {user!r} here") from None
