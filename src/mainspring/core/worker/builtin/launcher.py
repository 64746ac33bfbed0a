"""Starts one program and guarantees that none of its processes remains when the launcher ends.

Run as a file, ``python -I -S launcher.py ORDER LINE``. It imports nothing of the package and little of the standard
library, so that it starts in milliseconds. ``ORDER`` is a descriptor with the instructions (written by ``process.py``).
``LINE`` is a socket for the worker's commands: ``T`` asks the tree to end, ``K`` or a closed socket kills it. One JSON
object is sent back when all is over.

- It is a *subreaper*: any descendant that loses its parent becomes its child, also after ``setsid`` and a double fork.
  All have ended when it has no child left. Where there are cgroups, the program has one, which is killed first.
- Where nothing else limits the number of processes, it counts them, and kills them all if there are too many.
- The program begins in its own session, cannot gain privileges, and has the user and limits of the order.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import select
import signal
import sys
from time import monotonic  # noqa: TID251 - no part of the package is imported here

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_LINUX = sys.platform == "linux"
#: Milliseconds between two rounds of killing, which catch processes that fork as fast as they die.
_ROUND = 5
#: Milliseconds between two counts of the processes; longer where counting itself takes long.
_COUNT = 100
_COUNT_SHARE = 20
_RESET = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)


class LaunchSpec:
    """The decoded order: alternating kinds and values, separated by zero bytes."""

    def __init__(self, data: bytes) -> None:
        words = [os.fsdecode(word) for word in data.split(b"\0")]
        pairs = list(zip(words[::2], words[1::2], strict=True))

        def list_all(kind: str) -> list[str]:
            return [word for about, word in pairs if about == kind]

        def split(kind: str) -> dict[str, str]:
            return {name: value for name, _, value in (word.partition("=") for word in list_all(kind))}

        self.argv = list_all("argument")
        self.environment = split("variable")
        self.folder = list_all("folder")[0]
        #: User, group and further groups.
        self.identity = [int(number) for number in list_all("identity")]
        self.limits = {name: int(value) for name, value in split("limit").items()}
        self.processes = int(list_all("processes")[0])
        self.cgroup = list_all("cgroup")[0]
        self.cgroup_limits = split("cgroup limit")
        self.no_new_privileges = list_all("no new privileges") == ["yes"]


def prctl(option: int, value: int) -> None:
    if _LINUX and ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


class Cgroup:
    """A cgroup v2 folder for one program; without a path every method does nothing."""

    def __init__(self, path: str, limits: dict[str, str]) -> None:
        self._path = path
        if path:
            os.makedirs(path, exist_ok=True)
            for name, value in limits.items():
                # Skip limits that an old kernel does not know.
                if os.path.exists(f"{path}/{name}"):
                    self._write(name, value)

    def join(self) -> None:
        self._write("cgroup.procs", "0")

    def kill(self) -> None:
        try:
            self._write("cgroup.kill", "1")
        except OSError:
            # Older than Linux 5.14. The tree is killed one by one.
            return

    def ran_out_of_memory(self) -> bool:
        return bool(self._path) and counted(f"{self._path}/memory.events", "oom_kill") > 0

    def remove(self) -> None:
        if self._path:
            try:
                os.rmdir(self._path)
            except OSError:
                return

    def _write(self, name: str, value: str) -> None:
        if self._path:
            with open(f"{self._path}/{name}", "w") as file:
                file.write(value)


def counted(path: str, name: str) -> int:
    """Read a number from a file of names and numbers."""
    try:
        with open(path) as file:
            return next((int(line.split()[1]) for line in file if line.startswith(f"{name} ")), 0)
    except OSError:
        return 0


def start(order: LaunchSpec, cgroup: Cgroup) -> int:
    """Fork the program and return its process id. Raises ``OSError`` if it cannot be started."""
    launcher = os.getpid()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        number = errno.EINVAL
        try:
            become(order, cgroup, launcher)
            replace(order)
        except OSError as error:
            number = error.errno or number
        finally:
            os.write(write_end, str(number).encode())
            os._exit(127)
    os.close(write_end)
    with open(read_end) as pipe:
        problem = pipe.read()
    if problem:
        os.waitpid(pid, 0)
        raise OSError(int(problem), "")
    return pid


def become(order: LaunchSpec, cgroup: Cgroup, launcher: int) -> None:
    """Set up the new process: session, cgroup, limits, user and privileges."""
    os.setsid()
    cgroup.join()
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, value in order.limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))
    if order.identity:
        user, group, *groups = order.identity
        os.setgroups(groups)
        os.setgid(group)
        os.setuid(user)
    # After the change of user, which resets it. The launcher may have died before this call.
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(127)
    if order.no_new_privileges:
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
    os.chdir(order.folder)


def replace(order: LaunchSpec) -> None:
    """Execute the program.

    Avoids the standard library's search, which imports modules that the user may not be able to read.
    """
    name = order.argv[0]
    problem = OSError(errno.ENOENT, "")
    for folder in [""] if "/" in name else order.environment.get("PATH", os.defpath).split(":"):
        try:
            os.execve(f"{folder}/{name}" if folder else name, order.argv, order.environment)  # noqa: S606
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            problem = error
    raise problem


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def descendants() -> list[int]:
    """Return all descendants of this process, according to the kernel."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if _LINUX else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", errors="replace") as file:
                    # The program's name, in brackets, may contain spaces and brackets.
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(parent, []).append(int(name))
    found = []
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


class Tree:
    """The program and all its descendants."""

    def __init__(self, leader: int, cgroup: Cgroup) -> None:
        self._leader = leader
        self._cgroup = cgroup
        #: The leader's status, as returned by ``os.waitpid``.
        self.status: int | None = None
        #: How many processes had to be killed after the leader had ended.
        self.left = 0
        self.empty = False
        #: It had more processes than allowed.
        self.too_many = False

    def signal(self, number: int) -> None:
        """Signal every process of the tree; without ``/proc``, signal the group of the leader."""
        if not _LINUX and self.status is None:
            send(-self._leader, number)
        for pid in descendants():
            send(pid, number)

    def kill(self) -> None:
        self._cgroup.kill()
        self.signal(signal.SIGKILL)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.empty = True
                return
            if pid == 0:
                return
            if pid == self._leader:
                if not _LINUX:
                    # Processes of its group are not our children: this is the last chance to kill them.
                    send(-pid, signal.SIGKILL)
                self.status = status
            elif self.status is not None:
                self.left += 1


def attend(tree: Tree, line: int, wakeup: int, most: int) -> None:
    """Wait until no process is left. ``most``: the most processes it may have; 0 for no limit."""
    count_at = monotonic()
    pause = _COUNT if most else None
    poll = select.poll()
    poll.register(line, select.POLLIN)
    poll.register(wakeup, select.POLLIN)
    killing = False
    while not tree.empty:
        for descriptor, _ in poll.poll(_ROUND if killing else pause):
            if descriptor == wakeup:
                os.read(wakeup, 4096)
                continue
            orders = os.read(line, 64)
            if b"T" in orders:
                tree.signal(signal.SIGTERM)
            if not orders:
                poll.unregister(line)
            killing = killing or not orders or b"K" in orders
        tree.reap()
        if most and not killing and (now := monotonic()) >= count_at:
            killing = tree.too_many = len(descendants()) > most
            # Counting reads all of /proc: limit it to a twentieth of one processor.
            spent = monotonic() - now
            pause = max(_COUNT, round(_COUNT_SHARE * spent * 1_000))
            count_at = now + pause / 1_000
        # Processes that a program leaves behind at its end are killed.
        killing = killing or tree.status is not None
        if killing and not tree.empty:
            tree.kill()
            tree.reap()


def serve(order: LaunchSpec, line: int) -> str:
    """Start the program, wait for its end, and return the result as JSON."""
    wakeup, ringer = os.pipe()
    os.set_blocking(ringer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ringer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    before = counted("/proc/vmstat", "oom_kill")
    cgroup = Cgroup("", {})
    try:
        cgroup = Cgroup(order.cgroup, order.cgroup_limits)
        leader = start(order, cgroup)
    except OSError as error:
        cgroup.remove()
        return f'{{"errno": {error.errno}}}'
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    tree = Tree(leader, cgroup)
    attend(tree, line, wakeup, order.processes)
    code = os.waitstatus_to_exitcode(tree.status or 0)
    killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)
    no_memory = cgroup.ran_out_of_memory() or (killed and counted("/proc/vmstat", "oom_kill") > before)
    cgroup.remove()
    # All processes were reaped here, so this is their total usage.
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = round((used.ru_utime + used.ru_stime) * 1_000_000)
    flags = f'"out_of_memory": {str(no_memory).lower()}, "too_many_processes": {str(tree.too_many).lower()}'
    return f'{{"code": {code}, "left": {tree.left}, "cpu": {cpu}, {flags}}}'


def main() -> None:
    with open(int(sys.argv[1]), "rb") as file:
        order = LaunchSpec(file.read())
    line = int(sys.argv[2])
    os.set_inheritable(line, False)
    result = serve(order, line)
    try:
        os.write(line, result.encode())
    except OSError:
        return


if __name__ == "__main__":
    main()
