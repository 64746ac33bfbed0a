"""The tasks of the runbooks: two that fail, and one whose queue has no worker."""

from mainspring import Context, Mainspring

app = Mainspring()


@app.task(retries=0)
async def charge(context: Context, order: int) -> str:
    context.log.info("charging order %s", order)
    if order < 0:
        raise ConnectionRefusedError("payments.example.org refused the connection")
    return f"charged order {order}"


@app.task(queue="mail")
async def send_welcome(user_id: int) -> str:
    return f"welcome, user {user_id}"


@app.cron("0 2 * * *", name="nightly")
@app.task(retries=0)
async def invoices(context: Context) -> str:
    context.log.info("reading the template")
    raise FileNotFoundError("template.html")


@app.cron("* * * * * *", name="heartbeat", slo={"start_within": "5s"})
async def heartbeat() -> str:
    return "still here"
