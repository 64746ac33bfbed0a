"""Writes docs/reference/sdk.md: what can be imported from ``mainspring`` and ``mainspring.testing``, with every option.

python -m tools.sdk_reference > docs/reference/sdk.md
"""

import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

from mainspring.core.model.runs.view import RunView
from mainspring.sdk.dependencies import Parents
from mainspring.sdk.handle import SyncHandle
from mainspring.sdk.task import SyncSubmitter, Task
from mainspring.sdk.workflow import Step, Workflow

MODULES = ("mainspring", "mainspring.testing")
#: What one is given and need not import.
GIVEN = (Task, SyncSubmitter, SyncHandle, RunView, Workflow, Step, Parents)
#: What calls return: applications import it for annotations only.
_RETURNED = ("BlockingTestScheduler", "FanOut", "RunHandle", "Runs")
_DURATION = """\
A `Duration` is text such as `"30s"`, `"10m"` or `"1h30m"`, a timedelta, or a number of seconds. Units are lower case.
"""
_WIDTH = 118


#: The names of the page by theme. A name with a dot is a method of the application.
THEMES: dict[str, tuple[str, tuple[str, ...]]] = {
    "Applications": (
        "An application holds tasks, schedules and the store that they use.",
        ("Mainspring", ".connect", ".settings", ".running", ".close"),
    ),
    "Tasks and schedules": (
        (
            "Declare what workers run, and when. [Writing tasks](../guides/writing-tasks.md), "
            "[schedules as code](../guides/schedules-as-code.md)."
        ),
        (".task", ".cron", ".every", ".named", ".schedules", ".declare", "Task", "Overlap", "CatchUp", "prefer"),
    ),
    "Retries and limits": (
        (
            "Decide after which errors a run is retried, and how many runs are active. "
            "[Retries](../guides/retries.md), [limits](../guides/rate-limits.md)."
        ),
        ("RetryPolicy", "Retry", "GiveUp", "Limit", "Breaker", "Unique"),
    ),
    "Submitting": (
        (
            "Submit a task where you can import it with `task.submit`, elsewhere by its name. "
            "[Submit from your application](../guides/submit-jobs.md), [transactions](../guides/transactions.md)."
        ),
        (
            ".submit",
            ".submit_sync",
            ".submit_many",
            ".submit_many_sync",
            ".broadcast",
            ".broadcast_sync",
            "SyncSubmitter",
            "transaction",
        ),
    ),
    "Runs and results": (
        "Wait for a run, read its result, or cancel it.",
        (".handle", "RunHandle", "SyncHandle", "RunView", "FanOut"),
    ),
    "Inside a task": (
        "A task with a parameter of the type `Context` gets the current attempt.",
        ("Context", "Parents", "provided"),
    ),
    "Workflows": (
        "Runs that depend on each other. [Workflows](../guides/workflows.md).",
        (".workflow", "Workflow", "Step"),
    ),
    "Hooks and resources": (
        "Code around tasks: open a pool once, report every failure.",
        (".on_start", ".on_stop", ".resource", ".around", ".on_success", ".on_failure"),
    ),
    "Pausing": (
        "Pause schedules and queues from code.",
        (
            ".pause",
            ".resume",
            ".pause_queue",
            ".resume_queue",
            ".pause_sync",
            ".resume_sync",
            ".pause_queue_sync",
            ".resume_queue_sync",
        ),
    ),
    "Errors": (
        "All errors of Mainspring inherit from `MainspringError`.",
        (
            "MainspringError",
            "Invalid",
            "NotFound",
            "Conflict",
            "Denied",
            "Fenced",
            "StoreUnavailable",
            "RunFailed",
            "RunCancelled",
            "RunSkipped",
        ),
    ),
}
#: Methods for workers, the command line and the test scheduler, not for applications.
INTERNAL = {
    "Mainspring": [
        "handlers",
        "block_on",
        "backend",
        "runtime",
        "use",
        "replace_runtime",
        "adopt",
        "schedule_call",
        "source",
        "list_removed",
        "entries",
        "queues",
        "hosting",
        "check_needs",
        "provide_to",
        "record_result",
    ],
    "Task": ["entries", "handler", "prepare_call"],
}


def render() -> str:
    application = importlib.import_module("mainspring")
    parts = [
        "# The Python SDK\n",
        (
            "The public names of `mainspring` and `mainspring.testing`, by theme. `make reference` writes this page\n"
            "from the code. For a start, read [the tutorial](../get-started/tutorial.md).\n"
        ),
        _DURATION,
    ]
    methods = dict(_methods(application.Mainspring))
    given = {kind.__name__: kind for kind in GIVEN}
    for theme, (words, names) in THEMES.items():
        parts.append(f"## {theme}\n\n{words}\n")
        for name in names:
            if name.startswith("."):
                parts.append(_function(f"app{name}", methods[name[1:]], level="###"))
            else:
                parts += _thing(name, given.get(name) or getattr(application, name))
    testing = importlib.import_module("mainspring.testing")
    parts.append(
        "## Testing\n\nRun your application in virtual time: import from `mainspring.testing`. "
        "[Testing](../guides/testing.md).\n"
    )
    for name in sorted(testing.__all__, key=str.lower):
        parts += _thing(name, getattr(testing, name))
    return "\n".join(parts)


def _thing(name: str, thing: Any) -> Iterator[str]:
    if inspect.isclass(thing) and issubclass(thing, Exception):
        yield f"### {name}\n\nAn error. {_words(thing)}\n"
    elif inspect.isclass(thing) and issubclass(thing, Enum):
        values = ", ".join(f"`{item.value}`" for item in thing)
        yield f"### {name}\n\n{_words(thing)} Values: {values}.\n"
    elif inspect.isclass(thing):
        yield f"### {name}\n\n{_made(name, thing)}{_words(thing)}\n"
        init = thing.__init__.__doc__ or ""
        if init and "See help(type(self))" not in init:
            yield f"{_clean(init)}\n"
        yield from _fields(thing)
        if name == "Mainspring":
            # Its methods are in the themes.
            return
        for method_name, method in _methods(thing):
            if method_name not in INTERNAL.get(name, ()):
                yield _function(method_name, method)
    elif callable(thing):
        yield _function(name, thing, level="###")


def _made(name: str, kind: type) -> str:
    """How an application makes one. Structures list their fields instead."""
    if kind in GIVEN or name in _RETURNED or "__init__" not in vars(kind) or hasattr(kind, "__struct_fields__"):
        return ""
    signature = _signature(name, vars(kind)["__init__"]).removesuffix(" -> None")
    return f"```text\n{signature}\n```\n\n"


def _fields(kind: type) -> Iterator[str]:
    """The attributes of a structure, with the text that stands under each."""
    names = getattr(kind, "__struct_fields__", ())
    if not names:
        return
    source = inspect.getsource(kind)
    for field in names:
        if field.startswith("_"):
            continue
        found = re.search(
            rf'((?:^    #: ?[^\n]*\n)*)^    ({field}:[^\n]*)\n(?:    """(.*?)""")?', source, re.DOTALL | re.MULTILINE
        )
        if found is None:
            yield f"- `{field}`"
            continue
        said = _clean(found[3] or re.sub(r"^    #: ?", "", found[1], flags=re.MULTILINE))
        yield f"- `{found[2]}`{f': {said}' if said else ''}"
    yield ""


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    seen = set()
    for owner in kind.__mro__:
        if not owner.__module__.startswith("mainspring"):
            continue
        for name, member in vars(owner).items():
            # Names without a docstring are not for applications.
            if name.startswith("_") or name in seen or not inspect.getdoc(member):
                continue
            seen.add(name)
            if isinstance(member, property) and member.fget is not None:
                yield name, member
            elif isinstance(member, classmethod | staticmethod):
                yield name, member.__func__
            elif inspect.isfunction(member):
                yield name, member


def _function(name: str, function: Any, level: str = "####") -> str:
    if isinstance(function, property):
        return f"{level} `.{name}`\n\n{_words(function)}\n"
    wrapped: Callable[..., object] = inspect.unwrap(function)
    word = "async " if inspect.iscoroutinefunction(wrapped) else ""
    signature = _signature(name, wrapped)
    return f"{level} `{name}`\n\n```text\n{word}{signature}\n```\n\n{_words(function)}\n"


def _signature(name: str, function: Callable[..., object]) -> str:
    signature = inspect.signature(function)
    parameters = [item for key, item in signature.parameters.items() if key not in ("self", "cls")]
    text = f"{name}{signature.replace(parameters=parameters)}"
    text = re.sub(r"\b(mainspring|collections\.abc|typing|datetime|contextlib)(\.\w+)*\.(?=[A-Z])", "", text)
    text = re.sub(r"'([\w\[\], .|]+)'(?=[,)\]]|$| =)", r"\1", text) if "'" in text and "-> '" in text else text
    text = text.replace("int | float | str | datetime.timedelta", "Duration")
    text = re.sub(r"<(\w+)\.(\w+): '[^']*'>", r"\1.\2", text)
    if len(text) <= _WIDTH:
        return text
    head, _, rest = text.partition("(")
    inner, _, tail = rest.rpartition(")")
    return f"{head}(\n" + "".join(f"    {part},\n" for part in _split(inner)) + f"){tail}"


def _split(inner: str) -> Iterator[str]:
    """At the commas between parameters, not at those inside of brackets."""
    depth = start = 0
    for place, letter in enumerate(inner):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            yield inner[start:place].strip()
            start = place + 1
    yield inner[start:].strip()


def _words(thing: Any) -> str:
    return _clean(inspect.getdoc(thing) or "")


def _clean(text: str) -> str:
    text = textwrap.dedent(text).strip().replace("``", "`")
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(" ".join(part.split()) for part in paragraphs)


if __name__ == "__main__":
    sys.stdout.write(render())
