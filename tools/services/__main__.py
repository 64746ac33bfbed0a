"""``python -m tools.services start|stop|remove|status [name …]``."""

import argparse
import sys

from tools.services import ServiceUnavailable, all_services


def main() -> int:
    services = all_services()
    parser = argparse.ArgumentParser(prog="python -m tools.services", description="Local servers for tests.")
    parser.add_argument("action", choices=["start", "stop", "remove", "status"])
    parser.add_argument("names", nargs="*", metavar="name", help=f"all by default: {', '.join(services)}")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(services):
        parser.error(f"unknown service: {', '.join(sorted(unknown))}")

    failed = False
    for name in arguments.names or services:
        service = services[name]
        if service.on_demand and arguments.action == "start" and not arguments.names:
            continue
        try:
            if arguments.action == "start":
                print(f"{name}: {service.ensure()}")
            elif not service.installed():
                print(f"{name}: not installed")
            elif arguments.action == "status":
                print(f"{name}: {service.address() if service.running() else 'stopped'}")
            else:
                with service.locked():
                    service.stop() if arguments.action == "stop" else service.remove()
                print(f"{name}: stopped" + (" and removed" if arguments.action == "remove" else ""))
        except ServiceUnavailable as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
