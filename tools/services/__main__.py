"""``python -m tools.services start|stop|remove|status [name …]``, or ``lend name``."""

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.services import Service, ServiceUnavailable, all_services
from tools.services.postgres import local_postgres
from tools.services.service import install_packages


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
    if action == "start":
        _install(chosen)
    # Side by side: each of them waits for its server most of the time.
    with ThreadPoolExecutor(len(chosen)) as pool:
        results = list(pool.map(lambda service: _do(action, service), chosen))
    return 0 if all(results) else 1


def _lend(service: Service) -> int:
    """A fresh one, whose address is printed. It is removed when our standard input ends, so also when whoever asked
    for it is killed."""
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


def _install(services: Sequence[Service]) -> None:
    """All that is missing at once. What cannot be had this way is tried again alone, and told by its own name."""
    packages = list(dict.fromkeys(package for service in services for package in service.missing_packages()))
    if packages:
        with contextlib.suppress(ServiceUnavailable):
            install_packages("services", packages, services[0].home)


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
