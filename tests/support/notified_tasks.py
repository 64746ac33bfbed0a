"""A task that fails until a file exists."""

import os
from pathlib import Path

from mainspring import Mainspring, RetryPolicy

app = Mainspring()


@app.task(retry=RetryPolicy(max_retries=1, backoff="list", delays=("3s",)))
def charge(order: int) -> None:
    if not Path(os.environ["FIXED"]).exists():
        raise ValueError(f"order {order} cannot be charged")
