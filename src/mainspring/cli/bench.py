"""``mainspring bench``."""

import typer


def register(application: typer.Typer) -> None: ...
