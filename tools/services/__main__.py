"""``python -m tools.services start|stop|remove|status [name …]``, or ``lend name``."""

import argparse
import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

from tools.services import Service, ServiceUnavailable, all_services
from tools.services.postgres import local_postgres
from tools.services.service import install_packages

_PROGRESS_SECONDS = 10


def main() -> int:
    services = all_services()
    parser = argparse.ArgumentParser(prog="python -m tools.services", description="Local servers for tests.")
    parser.add_argument("action", choices=["start", "stop", "remove", "status", "lend"])
    parser.add_argument("names", nargs="*", metavar="name", help=f"all by default: {', '.join(services)}")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(services):
        parser.error(f"unknown service: {', '.join(sorted(unknown))}")

    action, named = arguments.action, arguments.names
    if action == "lend":
        if len(named) != 1:
            parser.error("one service is lent at a time")
        return _lend(services[named[0]])
    chosen = [services[name] for name in named or services]
    if action == "start" and not named:
        chosen = [service for service in chosen if not service.on_demand]
    return 0 if all(_do_all(action, chosen)) else 1


def _do_all(action: str, services: Sequence[Service]) -> list[bool]:
    """Each service in a thread of its own: most of the time it waits for a download, a build or a server."""
    packaged = [service for service in services if action == "start" and service.missing_packages()]
    with ThreadPoolExecutor(len(services)) as pool, _Progress() as progress:

        def begin(service: Service) -> Future[bool]:
            return pool.submit(progress.watch, service.name, lambda: _do(action, service))

        begun = [begin(service) for service in services if service not in packaged]
        if packaged:
            # One call installs all packages, because apt allows no second one beside it.
            progress.watch("packages", lambda: _install(packaged))
            begun += [begin(service) for service in packaged]
        return [future.result() for future in begun]


class _Progress:
    """Prints every ten seconds what is still under way, to standard error."""

    def __init__(self) -> None:
        self._began: dict[str, float] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._print, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()

    def watch(self, name: str, work: Callable[[], bool]) -> bool:
        self._began[name] = time.monotonic()
        try:
            return work()
        finally:
            del self._began[name]

    def _print(self) -> None:
        while not self._done.wait(_PROGRESS_SECONDS):
            now = time.monotonic()
            waiting = ", ".join(f"{name} ({now - began:.0f} s)" for name, began in list(self._began.items()))
            print(f"waiting for {waiting}", file=sys.stderr, flush=True)


def _lend(service: Service) -> int:
    """Start a fresh server and print its address. Remove it when standard input ends, as it does if the caller dies."""
    # Not /tmp: that is often in memory.
    with tempfile.TemporaryDirectory(prefix=f"mainspring-{service.name}-", dir=local_postgres.DISK) as home:
        lent = type(service)(Path(home))
        try:
            with contextlib.redirect_stdout(sys.stderr):
                address = lent.ensure()
            print(address, flush=True)
            sys.stdin.read()
        except ServiceUnavailable as error:
            print(error, file=sys.stderr)
            return 1
        finally:
            lent.remove()
    return 0


def _install(services: Sequence[Service]) -> bool:
    """Install the packages of all services at once. If that fails, each service tries again alone and reports why."""
    packages = list(dict.fromkeys(package for service in services for package in service.missing_packages()))
    try:
        install_packages("services", packages, services[0].home)
    except ServiceUnavailable:
        return False
    return True


def _do(action: str, service: Service) -> bool:
    try:
        print(f"{service.name}: {_outcome(action, service)}", flush=True)
    except ServiceUnavailable as error:
        print(f"{service.name}: {error}", file=sys.stderr, flush=True)
        return False
    return True


def _outcome(action: str, service: Service) -> str:
    if action == "start":
        return service.ensure()
    if not service.installed():
        return "not installed"
    if action == "status":
        return service.address() if service.running() else "stopped"
    with service.locked():
        if action == "stop":
            service.stop()
            return "stopped"
        service.remove()
        return "stopped and removed"


if __name__ == "__main__":
    sys.exit(main())
