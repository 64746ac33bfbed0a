"""Tasks that leak a secret in every way there is."""

# ruff: noqa: T201

import base64
import json
import logging
import sys
from typing import Any
from urllib.parse import quote

from mainspring import Context, Mainspring, RetryPolicy

app = Mainspring()


def leak(context: Context) -> dict[str, Any]:
    value = context.secret("CANARY")
    print("printed", value, json.dumps(value), end=" ")
    print("and", base64.b64encode(f"user:{value}".encode()).decode())
    print("to stderr", value, file=sys.stderr)
    logging.getLogger("library").warning("logged %s", value)
    context.log.info("reported %r", value)
    context.progress(1, 2, f"note {value} " + "x" * 970 + value)
    context.checkpoint({"state": value})
    try:
        raise ValueError(f"inner {value}")
    except ValueError:
        logging.getLogger("library").exception("with a trace")
    return {"value": value, "quoted": quote(value), value: [value], "visible": "nothing to hide"}


@app.task(retries=0)
async def on_loop(context: Context) -> dict[str, Any]:
    return leak(context)


@app.task(retry=RetryPolicy(max_retries=3, first_delay="1us", max_delay="1us"))
def in_child(context: Context) -> dict[str, Any]:
    return leak(context)


@app.task(retries=0, executor="thread")
def on_thread(context: Context) -> dict[str, Any]:
    return leak(context)


@app.task(retries=0)
async def fails(context: Context) -> None:
    value = context.secret("CANARY")
    raise RuntimeError(f"it is {value}") from ValueError({"cause": value})


@app.task(retries=0)
def fails_in_child(context: Context) -> None:
    value = context.secret("CANARY")
    raise RuntimeError(f"it is {value}")


@app.task(retries=3)
async def asks_for_another(context: Context) -> str:
    return context.secret("NOT_THERE")
