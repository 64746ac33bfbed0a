"""An application whose task fails while a file exists."""

import os
from pathlib import Path

from mainspring import Mainspring

app = Mainspring()


@app.task(queue="mail", retries=0)
async def send(number: int) -> int:
    if Path(os.environ["BROKEN_WHILE"]).exists():  # noqa: ASYNC240
        raise ConnectionError("the mail server is away")
    return number


@app.cron("* * * * * *")
@app.task(queue="mail")
async def tick() -> None: ...
