"""The tasks that pages without code of their own run."""

from mainspring import Mainspring

app = Mainspring()


@app.task
async def send_welcome(user_id: int) -> str:
    return f"welcome, user {user_id}"


@app.task(queue="mail", retries=0)
async def mail(user_id: int) -> str:
    if user_id < 0:
        raise ConnectionRefusedError("smtp.example.org refused the connection")
    return f"sent to {user_id}"


@app.task
async def report(to: str = "board") -> str:
    return f"reported to {to}"


@app.task
async def cleanup() -> str:
    return "nothing to clean up"


@app.cron("0 2 * * *", name="nightly")
async def nightly() -> str:
    return "nothing to do"
