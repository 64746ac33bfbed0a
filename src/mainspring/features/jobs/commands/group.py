"""The group ``mainspring jobs``, and the arguments that its commands share."""

from typing import Annotated, TypeAlias

import typer

group = typer.Typer(name="jobs", help="Submit, list, change and cancel jobs.", no_args_is_help=True)

Job: TypeAlias = Annotated[
    str, typer.Argument(help="The job's id, its name, or the last characters of its id.", metavar="JOB")
]
Jobs: TypeAlias = Annotated[
    list[str], typer.Argument(help="Ids, names, or the last characters of ids.", metavar="JOB…", show_default=False)
]
