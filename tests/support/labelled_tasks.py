"""An application whose tasks return the id of their process."""

import os

from mainspring import Mainspring

app = Mainspring()


@app.task
async def anywhere() -> int:
    return os.getpid()


@app.task(requires={"gpu": "a100"})
async def on_a_gpu() -> int:
    return os.getpid()


@app.task(retries=0, timeout="1m")
async def everywhere() -> int:
    return os.getpid()
