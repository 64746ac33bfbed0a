"""Wrong use of the SDK: every line marked ``# wrong`` is an error in both checkers, and no other line is."""

from mainspring import Context, Mainspring, provided

app = Mainspring("memory:")


@app.task
async def add(left: int, right: int = 1) -> int:
    return left + right


@app.task(queue="mail")
def send(context: Context, to: str) -> str:
    return to


@app.task
async def pay(number: int, order: bytes = provided()) -> None: ...


@app.on_success  # wrong
def succeeded(context: Context) -> None: ...


async def use() -> None:
    await pay.submit("one")  # wrong
    await pay(1, order=2)  # wrong
    await add.submit("one")  # wrong
    await add.submit()  # wrong
    await add.submit(1, 2, 3)  # wrong
    await add.submit(1, rigth=2)  # wrong
    await send.submit(to=7)  # wrong
    await send.options(delay="1m").submit("a", "b")  # wrong
    await send.options(prioritty=1).submit("a")  # wrong
    add.prepare(None)  # wrong
    add.sync.submit("one")  # wrong
    text: str = await (await add.submit(1)).result()  # wrong
    send("a", 1)  # wrong
    print(text)


app.task(executor="elsewhere")  # wrong
app.every("10m", mode="sometimes")  # wrong
