"""Tasks that record spans of their own, on the loop and in child processes."""

import logging

from opentelemetry import trace

from mainspring import Context, Mainspring

app = Mainspring()
_tracer = trace.get_tracer("shop")


@app.task(queue="mail", retries=2)
async def order(context: Context, number: int) -> str:
    """Fail once, then spawn a child run."""
    with _tracer.start_as_current_span("look up"):
        if context.attempt == 1:
            raise ConnectionError("the shop is away")
    logging.getLogger("shop").warning("order %d", number)
    await context.spawn(bill.prepare(number))
    return _here()


@app.task(queue="mail")
def bill(context: Context, number: int) -> str:
    with _tracer.start_as_current_span("write the bill"):
        context.log.info("bill %d", number)
        return _here()


@app.cron("* * * * * *")
@app.task(queue="mail")
async def tick() -> None: ...


def _here() -> str:
    return f"{trace.get_current_span().get_span_context().trace_id:032x}"
