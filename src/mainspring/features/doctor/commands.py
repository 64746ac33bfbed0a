"""``mainspring doctor``: checks the store and the processes that use it, and recommends fixes."""

import asyncio
from collections.abc import Sequence

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from mainspring.cli import logs
from mainspring.cli.client.command import Profile
from mainspring.cli.client.target import store_settings
from mainspring.cli.options import Config, Store
from mainspring.cli.output import AsJson, echo_json, make_console
from mainspring.config.health import examine
from mainspring.config.sections.monitoring import LogSection
from mainspring.core.model.cluster.diagnosis import Finding, Level

_LEVELS = {Level.OK: ("ok", "green"), Level.WARNING: ("warning", "yellow"), Level.PROBLEM: ("problem", "red")}
_WIDTH = 20


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """JSON output."""

    problems: int
    warnings: int
    findings: Sequence[Finding]


def register(application: typer.Typer) -> None:
    application.command("doctor")(doctor)


def doctor(profile: Profile = None, store: Store = None, config: Config = None, json: AsJson = False) -> None:
    """Look for existing and imminent problems, and recommend fixes. Nothing is changed.

    It checks the store (schema, clock, latency, durability, vacuum, old transactions, indexes, partitions, disk), the
    coordinator and the store of run logs if they are separate, and the processes (schedulers, workers, queues without
    workers, backlogs). Exits with 1 if there is a problem; warnings alone are 0.

    Examples:

    mainspring doctor

    mainspring doctor --store postgresql://me@db.example.org/jobs --json
    """
    settings = store_settings(profile, store, config)
    # The findings are the output: other log messages along the way would only repeat them.
    logs.configure(LogSection(level="error"))
    findings = asyncio.run(examine(settings))
    levels = [finding.level for finding in findings]
    report = Report(problems=levels.count(Level.PROBLEM), warnings=levels.count(Level.WARNING), findings=findings)
    if json:
        echo_json(report)
    else:
        _show(make_console(), report)
    if report.problems:
        raise typer.Exit(1)


def _show(out: Console, report: Report) -> None:
    for finding in report.findings:
        word, colour = _LEVELS[finding.level]
        line = Text.assemble((f"{word:<8}", colour), f" {finding.check:<{_WIDTH}}", finding.says)
        out.print(_indent(line, out.width))
        if finding.advice:
            out.print(_indent(Text(f"{'':<8} {'':<{_WIDTH}}→ {finding.advice}", "dim"), out.width))
    out.print(f"{report.problems} problems, {report.warnings} warnings")


def _indent(line: Text, width: int) -> Text:
    """Wrap the line with continuation lines under the text column."""
    margin = 9 + _WIDTH
    if width < margin + 20:
        return line
    folded = line[margin:].wrap(Console(width=width), width - margin)
    indented = line[:margin]
    for number, part in enumerate(folded):
        indented += Text("\n" + " " * margin) if number else Text("")
        part.rstrip()
        indented += part
    return indented
