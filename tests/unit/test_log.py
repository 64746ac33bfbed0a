"""What an application sees of our log when it has set up nothing, and when it uses structlog itself."""

import subprocess
import sys

import pytest

QUIET = """
from mainspring.runtime.log import get_logger
log = get_logger("mainspring.test", worker="w1")
log.debug("not this")
log.info("nor that")
log.warning("but this, 100 % of it", again_in_ms=50)
try:
    raise ValueError("a reason")
except ValueError:
    log.exception("it failed")
import structlog
assert not structlog.is_configured()
"""

OWN = """
import structlog
from mainspring.runtime.log import get_logger
log = get_logger("mainspring.test")
structlog.configure(processors=[structlog.processors.JSONRenderer(sort_keys=True)])
log.info("as the application wants it", count=1)
"""

SECRET = """
import logging, structlog
from mainspring.cli import logs
from mainspring.sections import LogSection
logs.configure(LogSection(format="{format}"))
def fail() -> None:
    password = "".join(["hunter", "2"])
    raise ValueError("a reason")
for tell in (structlog.get_logger("mainspring.test").exception, logging.getLogger("other").exception):
    try:
        fail()
    except ValueError:
        tell("it failed")
"""


def run(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)


def test_without_any_setup_only_warnings_are_told_and_not_on_stdout() -> None:
    found = run(QUIET)
    assert found.stdout == ""
    lines = found.stderr.splitlines()
    assert lines[0] == "but this, 100 % of it worker='w1' again_in_ms=50"
    assert lines[1] == "it failed worker='w1'"
    assert lines[-1] == "ValueError: a reason"


def test_an_application_that_has_set_up_structlog_gets_everything_its_own_way() -> None:
    assert run(OWN).stdout == '{"count": 1, "event": "as the application wants it"}\n'


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_shows_no_local_variables(form: str) -> None:
    told = run(SECRET.format(format=form)).stderr
    assert told.count("ValueError: a reason") == 2
    assert "hunter2" not in told
