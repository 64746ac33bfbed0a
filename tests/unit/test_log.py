"""What an application sees of our log when it has set up nothing, and when it uses structlog itself."""

import json
import subprocess
import sys

import pytest

from mainspring.runtime.log_lines import FIELDS, LABELS, MORE_FIELDS

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


LINES = """
import logging, structlog
from mainspring.cli import logs
from mainspring.runtime.log import get_logger
from mainspring.runtime.masking import masks
from mainspring.sections import LogSection
from mainspring.worker.capture import capture
logs.configure(LogSection(format="{format}"))
log = get_logger("mainspring.test", worker="w1")
log.info("held", run="r1", attempt=2, tenant="acme", running=3, nothing=None)
logging.getLogger("library").warning("told %d", 7)
masks.learn("acme", "hunter-two")
capture.hide()
log.warning("hunter-two in the text", error="hunter-two in the error", where="hunter-two in a label")
logging.getLogger("library").warning("hunter-two is %s", "hunter-two")
log.warning("in a value", headers={{"Authorization": "Bearer hunter-two"}}, error=ValueError("hunter-two"), count=3)
structlog.get_logger("library").warning("in a value", headers={{"Authorization": "Bearer hunter-two"}}, count=3)
try:
    raise ValueError("hunter-two in an exception")
except ValueError:
    log.exception("it failed")
    logging.getLogger("library").exception("it failed")
"""


def test_lines_of_json_have_the_fields_of_the_elastic_common_schema() -> None:
    told = [json.loads(line) for line in run(LINES.format(format="json")).stderr.splitlines()]
    held, library = told[:2]
    assert {*FIELDS.values(), *MORE_FIELDS, LABELS} >= {name for line in told for name in line}
    assert held["@timestamp"].endswith("Z")
    assert (held["log.level"], held["message"], held["log.logger"]) == ("info", "held", "mainspring.test")
    assert (held["mainspring.run_id"], held["mainspring.attempt"], held["mainspring.tenant"]) == ("r1", 2, "acme")
    assert (held["mainspring.worker"], held["labels"]) == ("w1", {"running": "3"})
    assert (held["service.name"], held["event.dataset"]) == ("mainspring", "mainspring.log")
    assert (library["message"], library["log.logger"], library["log.level"]) == ("told 7", "library", "warning")
    failed = [line for line in told if line["message"].startswith("it failed")]
    assert failed[0]["error.type"] == "ValueError"
    assert "Traceback" in failed[0]["error.stack_trace"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_secret_is_in_any_line(form: str) -> None:
    told = run(LINES.format(format=form)).stderr
    assert "hunter" not in told
    assert len([line for line in told.splitlines() if "in the text" in line]) == 1
    assert len([line for line in told.splitlines() if "in a value" in line]) == 2
    assert "Logging error" not in told


OTHERS = """
import logging, structlog
from mainspring.runtime.masking import masks
from mainspring.worker.capture import capture
structlog.configure(
    processors=[structlog.stdlib.ProcessorFormatter.wrap_for_formatter], logger_factory=structlog.stdlib.LoggerFactory()
)
handler = logging.StreamHandler()
handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=structlog.processors.KeyValueRenderer()))
logging.getLogger().addHandler(handler)
masks.learn("acme", "hunter-two")
capture.hide()
log = structlog.get_logger("shop")
log.warning("told", headers={"Authorization": "hunter-two"}, error=ValueError("hunter-two"), count=3)
"""


def test_nor_in_one_that_an_application_writes_in_its_own_way() -> None:
    told = run(OTHERS).stderr
    assert "hunter" not in told
    assert "count=3" in told


STRANGE = """
import logging
from mainspring.cli import logs
from mainspring.sections import LogSection
logs.configure(LogSection(format="json"))
try:
    raise ValueError("bad \\udcff name")
except ValueError as error:
    logging.getLogger("library").exception("it failed: %s", error)
"""


def test_what_is_no_text_is_told_all_the_same() -> None:
    [line] = run(STRANGE).stderr.splitlines()
    found = json.loads(line)
    assert found["error.message"] == "bad ? name"
    assert "ValueError: bad ? name" in found["error.stack_trace"]
