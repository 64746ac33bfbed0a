"""The sections of metrics, traces and the log."""

import re

import msgspec

from mainspring.config.sections.values import Secret, Span, read_file
from mainspring.core.model.access.token_rules import is_loopback
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.runs.names import check_name


class MetricsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = True
    """Count runs, and serve ``/metrics`` and ``/healthz`` from schedulers and workers that run alone."""
    host: str = "127.0.0.1"
    """The address that ``/metrics`` of schedulers and workers listens on."""
    first_port: int = 7170
    """Schedulers and workers take the first free port from here."""
    last_port: int = 7199
    """The last port that they try."""
    token: Secret = ""
    """The token that a scraper must send: ``Authorization: Bearer …``."""
    token_file: str = ""
    """A file with the token."""
    max_names: int = 100
    """The number of tasks, queues and tenants with labels of their own in each process. The others are counted
    as ``other``."""
    tenants: bool = False
    """Count by tenant, too."""
    interval: Span = 10 * SECOND
    """Metrics of the fleet and of the store are read at most this often."""

    @property
    def ports(self) -> range:
        return range(self.first_port, self.last_port + 1)

    def secret(self) -> str:
        """Return the token from the setting or from its file."""
        if self.token_file:
            return read_file("metrics.token_file", self.token_file).decode().strip()
        return self.token

    def check(self) -> None:
        if self.last_port < self.first_port:
            raise Invalid("metrics.last_port", f"{self.last_port} is before metrics.first_port", "7199")
        if self.token and self.token_file:
            raise Invalid("metrics.token_file", "has no use beside metrics.token", "one of them")
        if self.token_file and not self.secret():
            raise Invalid("metrics.token_file", "is empty")
        if self.enabled and not is_loopback(self.host) and not (self.token or self.token_file):
            raise Invalid(
                "metrics.host",
                f"{self.host} is reachable from other machines, and the endpoint has no authentication",
                "set metrics.token or metrics.token_file",
            )

    def __repr__(self) -> str:
        return f"MetricsSection(enabled={self.enabled!r}, host={self.host!r}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("enabled", self.enabled), ("host", self.host)]


class TracingSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = False
    """Record submits, attempts and requests as OpenTelemetry traces."""
    endpoint: str = ""
    """The collector, which accepts OTLP over HTTP, as in ``http://collector:4318``. Default:
    ``OTEL_EXPORTER_OTLP_ENDPOINT``, or this machine."""
    ratio: float = 0.01
    """The sampling ratio of traces for which no caller has decided."""
    service: str = "mainspring"
    """The service name in traces. ``OTEL_SERVICE_NAME`` overrides it."""

    def check(self) -> None:
        check_name("tracing.service", self.service)
        if self.endpoint and not re.fullmatch(r"https?://[^\s/@?#]+(/[^\s?#]*)?", self.endpoint):
            raise Invalid(
                "tracing.endpoint",
                "is not the address of a collector",
                "http://collector:4318, without a user or a query",
            )


class LogSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    level: str = "info"
    format: str = "auto"
    """``text``, ``json``, or ``auto``: text on a terminal."""
    runs: str = "auto"
    """The attempts that a worker logs: ``failures``, ``all``, or ``auto``: all if the format is text."""
    output: bool = False
    """Log each line that a task prints, with its task and run."""
    tracebacks: str = "full"
    """The traceback of a failed attempt in the log: ``full``, or ``short`` for the exception alone."""

    def check(self) -> None:
        for name, words in {
            "format": ("auto", "text", "json"),
            "runs": ("auto", "all", "failures"),
            "tracebacks": ("full", "short"),
        }.items():
            if (value := getattr(self, name)) not in words:
                raise Invalid(f"log.{name}", f"{value!r} is not one of its values", ", ".join(words))
