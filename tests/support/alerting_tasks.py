"""An application whose task fails for as long as a file is there."""

import os
from pathlib import Path

from mainspring import Mainspring

app = Mainspring()


def _broken() -> bool:
    return Path(os.environ["BROKEN_WHILE"]).exists()


@app.task(queue="mail", retries=0)
async def send(number: int) -> int:
    if _broken():
        raise ConnectionError("the mail server is away")
    return number


@app.cron("* * * * * *")
@app.task(queue="mail")
async def tick() -> None: ...
