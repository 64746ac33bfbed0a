"""Options that several commands share, and the loaders of applications and settings."""

import importlib
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

import mainspring
from mainspring.config.loading import load, parse_labels, parse_priorities, parse_queues
from mainspring.config.settings import Settings
from mainspring.core.model.base.errors import Invalid
from mainspring.core.runtime.django import find_django_settings, set_up_django

if TYPE_CHECKING:
    from mainspring.sdk.app import Mainspring

Store: TypeAlias = Annotated[
    str | None,
    typer.Option("--store", help="A path for SQLite, or postgresql://…", envvar=None, show_default=False),
]
Coordination: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--coordination",
        help="The coordinator that grants shards to schedulers: store, redis://…, etcd://… or zookeeper://…",
        show_default=False,
    ),
]
Config: TypeAlias = Annotated[
    Path | None, typer.Option("--config", help="A settings file instead of ./mainspring.toml.", show_default=False)
]
Host: TypeAlias = Annotated[str | None, typer.Option("--host", help="Listen on this address.", show_default=False)]
Port: TypeAlias = Annotated[int | None, typer.Option("--port", help="Listen on this port.", show_default=False)]
Queues: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--queue", "-q", help="A queue with its slots, such as mail:20; can be repeated.", show_default=False),
]
Priorities: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--priority", help="A priority with slots of its own, such as 1:100; can be repeated.", show_default=False
    ),
]
Labels: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--label", help="A label of this worker, such as gpu=a100; can be repeated.", show_default=False),
]
Datacenter: TypeAlias = Annotated[
    str | None,
    typer.Option("--datacenter", help="The data center of this process, such as eu-west.", show_default=False),
]
Scripts: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--scripts", help="Run scripts from this folder, by the task shell.", metavar="DIR", show_default=False
    ),
]
Name: TypeAlias = Annotated[str | None, typer.Option("--name", help="A label for this process.", show_default=False)]
LogLevel: TypeAlias = Annotated[
    str | None, typer.Option("--log-level", help="debug, info, warning or error.", show_default=False)
]
ShowOutput: TypeAlias = Annotated[
    bool | None,
    typer.Option("--show-output", help="Log each line that a task prints, with its task and run.", show_default=False),
]
#: Path prefixes of the import system, of libraries, and of Mainspring.
_NOT_THE_APPLICATION = (
    "<",
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
    str(Path(mainspring.__file__).parent),
)
Application: TypeAlias = Annotated[
    str | None, typer.Argument(help="The application, as in module:app.", metavar="[MODULE:APP]", show_default=False)
]


def load_application(path: str) -> "Mainspring":
    """Import ``module:app`` from the working directory or the installed packages."""
    module_name, separator, attribute = path.partition(":")
    if not separator or not module_name or not attribute:
        raise Invalid("application", f"{path!r} is not of the form module:app", "for example tasks:app")
    found = getattr(load_module(module_name, "application"), attribute, None)
    from mainspring.sdk.app import Mainspring

    if not isinstance(found, Mainspring):
        raise Invalid("application", f"{module_name} has no Mainspring called {attribute!r}")
    return found


def load_module(module_name: str, field: str) -> ModuleType:
    """Import a module of the user. If that fails, raise ``Invalid`` with the cause on one line."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        find_django_settings(Path.cwd())
        set_up_django()
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise Invalid(field, f"there is no module {error.name!r} here") from None
        raise Invalid(field, f"{module_name} cannot be imported: {error}", _find_line(error)) from error
    except (Exception, SystemExit) as error:
        raise Invalid(
            field, f"{module_name} cannot be imported: {type(error).__name__}: {error}", _find_line(error)
        ) from error


def _find_line(error: BaseException) -> str:
    """Return the line of the application that raised the error. Empty if unknown, or if the error names it itself."""
    lines = [
        f"{frame.filename}, line {frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_THE_APPLICATION)
    ]
    return lines[-1] if lines and not isinstance(error, SyntaxError) else ""


def load_settings(application: "Mainspring | None", config: Path | None, **flags: object) -> Settings:
    """Load the settings. Options override code, code overrides the environment, and that overrides the file."""
    given = {name.replace("__", "."): value for name, value in flags.items()}
    queues = given.pop("worker.queues", None)
    if queues:
        given["worker.queues"] = parse_queues(queues, "--queue")
    priorities = given.pop("worker.priorities", None)
    if priorities:
        given["worker.priorities"] = parse_priorities(priorities, "--priority")
    labels = given.pop("worker.labels", None)
    if labels:
        given["worker.labels"] = parse_labels(labels, "--label")
    scripts = given.get("tasks.scripts")
    if scripts is not None and not Path(str(scripts)).expanduser().is_dir():
        raise Invalid("--scripts", f"{scripts} is not a folder")
    if application is not None:
        return application.settings(given, config)
    return load(given, file=config)
