"""The application of Procrastinate that the worker and the submitter share."""

import procrastinate

from bench.peers import peer

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=peer.URL, min_size=4, max_size=20))
recorders: list[peer.Recorder] = []


@app.task(name="nothing")
async def nothing(user_id: int, email: str, note: str) -> None:
    recorders[0].count()


@app.task(name="stamp")
async def stamp(n: int, due: int) -> None:
    recorders[0].stamp(n, due)
