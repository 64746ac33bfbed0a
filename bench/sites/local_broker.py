"""A temporary broker for a name without an address, lent by ``tools/services`` of a checkout."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mainspring.core.model.base.errors import Invalid

NAMES = ("redis", "rabbitmq", "kafka")
_CHECKOUT = Path(__file__).parents[2]
_HINT = "give its address, such as redis://127.0.0.1:6379"


def check_lendable(broker: str, checkout: Path = _CHECKOUT) -> None:
    """Before anything is measured, and not when it is the broker's turn."""
    if not (checkout / "tools/services/__main__.py").exists():
        raise Invalid("--dispatch", f"{broker} can be started from a checkout only", _HINT)


@contextmanager
def address_of(broker: str, checkout: Path = _CHECKOUT) -> Iterator[str]:
    """Yield the given address, or that of a fresh server, which ends with this process, even if it is killed."""
    if broker not in NAMES:
        yield broker
        return
    check_lendable(broker, checkout)
    lender = subprocess.Popen(
        [sys.executable, "-m", "tools.services", "lend", broker],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=checkout,
        start_new_session=True,  # Ctrl-C in a terminal is not for the server
    )
    # Leaving closes the pipes, which ends the server, and waits for that.
    with lender:
        assert lender.stdout is not None
        assert lender.stderr is not None
        address = lender.stdout.readline().strip()
        if not address:
            why = lender.stderr.read().strip().partition("\n")[0]
            raise Invalid("--dispatch", f"{broker} cannot be started here: {why}", _HINT)
        yield address
