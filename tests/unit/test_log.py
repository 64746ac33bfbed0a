"""Log output without any setup, with the application's own structlog, and as the CLI configures it."""

import json
import subprocess
import sys

import pytest

from mainspring.core.runtime.log_lines import FIELDS, LABELS, MORE_FIELDS

QUIET = """
from mainspring.core.runtime.log import get_logger
log = get_logger("mainspring.test", worker="w1")
log.debug("not this")
log.info("not that")
log.warning("this, 100 % of it", again_in_ms=50)
try:
    raise ValueError("a reason")
except ValueError:
    log.exception("it failed")
import structlog
assert not structlog.is_configured()
"""

OWN = """
import structlog
from mainspring.core.runtime.log import get_logger
log = get_logger("mainspring.test")
structlog.configure(processors=[structlog.processors.JSONRenderer(sort_keys=True)])
log.info("as the application wants it", count=1)
"""

SECRET = """
import logging, structlog
from mainspring.cli import logs
from mainspring.config.sections.monitoring import LogSection
logs.configure(LogSection(format="{format}"))
def fail() -> None:
    password = "".join(["hunter", "2"])
    raise ValueError("a reason")
for log in (structlog.get_logger("mainspring.test").exception, logging.getLogger("other").exception):
    try:
        fail()
    except ValueError:
        log("it failed")
"""


def run_program(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)


def test_without_any_setup_only_warnings_are_logged_and_not_to_stdout() -> None:
    found = run_program(QUIET)
    assert found.stdout == ""
    lines = found.stderr.splitlines()
    assert lines[0] == "this, 100 % of it worker='w1' again_in_ms=50"
    assert lines[1] == "it failed worker='w1'"
    assert lines[-1] == "ValueError: a reason"


def test_log_lines_use_the_structlog_configuration_of_the_application() -> None:
    assert run_program(OWN).stdout == '{"count": 1, "event": "as the application wants it"}\n'


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_shows_no_local_variables(form: str) -> None:
    output = run_program(SECRET.format(format=form)).stderr
    assert output.count("ValueError: a reason") == 2
    assert "hunter2" not in output


LINES = """
import logging, structlog
from mainspring.cli import logs
from mainspring.core.runtime.log import get_logger
from mainspring.core.runtime.masking import masks
from mainspring.config.sections.monitoring import LogSection
from mainspring.core.worker.reporting.capture import capture
logs.configure(LogSection(format="{format}"))
log = get_logger("mainspring.test", worker="w1")
log.info("held", run="r1", attempt=2, tenant="acme", running=3, nothing=None)
logging.getLogger("library").warning("count %d", 7)
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


def test_json_log_lines_have_the_fields_of_the_elastic_common_schema() -> None:
    lines = [json.loads(line) for line in run_program(LINES.format(format="json")).stderr.splitlines()]
    held, library = lines[:2]
    assert {*FIELDS.values(), *MORE_FIELDS, LABELS} >= {name for line in lines for name in line}
    assert held["@timestamp"].endswith("Z")
    assert (held["log.level"], held["message"], held["log.logger"]) == ("info", "held", "mainspring.test")
    assert (held["mainspring.run_id"], held["mainspring.attempt"], held["mainspring.tenant"]) == ("r1", 2, "acme")
    assert (held["mainspring.worker"], held["labels"]) == ("w1", {"running": "3"})
    assert (held["service.name"], held["event.dataset"]) == ("mainspring", "mainspring.log")
    assert (library["message"], library["log.logger"], library["log.level"]) == ("count 7", "library", "warning")
    failed = [line for line in lines if line["message"].startswith("it failed")]
    assert failed[0]["error.type"] == "ValueError"
    assert "Traceback" in failed[0]["error.stack_trace"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_log_lines_contain_no_secret(form: str) -> None:
    output = run_program(LINES.format(format=form)).stderr
    assert "hunter" not in output
    assert len([line for line in output.splitlines() if "in the text" in line]) == 1
    assert len([line for line in output.splitlines() if "in a value" in line]) == 2
    assert "Logging error" not in output


OTHERS = """
import logging, structlog
from mainspring.core.runtime.masking import masks
from mainspring.core.worker.reporting.capture import capture
structlog.configure(
    processors=[structlog.stdlib.ProcessorFormatter.wrap_for_formatter], logger_factory=structlog.stdlib.LoggerFactory()
)
handler = logging.StreamHandler()
handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=structlog.processors.KeyValueRenderer()))
logging.getLogger().addHandler(handler)
masks.learn("acme", "hunter-two")
capture.hide()
log = structlog.get_logger("shop")
log.warning("request", headers={"Authorization": "hunter-two"}, error=ValueError("hunter-two"), count=3)
"""


def test_log_lines_rendered_by_the_application_contain_no_secret() -> None:
    output = run_program(OTHERS).stderr
    assert "hunter" not in output
    assert "count=3" in output


STRANGE = """
import logging
from mainspring.cli import logs
from mainspring.config.sections.monitoring import LogSection
logs.configure(LogSection(format="json"))
try:
    raise ValueError("bad \\udcff name")
except ValueError as error:
    logging.getLogger("library").exception("it failed: %s", error)
"""


def test_an_error_that_is_not_valid_unicode_is_logged() -> None:
    [line] = run_program(STRANGE).stderr.splitlines()
    found = json.loads(line)
    assert found["error.message"] == "bad ? name"
    assert "ValueError: bad ? name" in found["error.stack_trace"]
