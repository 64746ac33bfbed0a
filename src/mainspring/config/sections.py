"""The sections of the settings, each with its checks."""

import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from mainspring.core.model.access.access import DEFAULT_TENANT
from mainspring.core.model.access.networks import read_networks
from mainspring.core.model.access.token_rules import check_grant, check_jwks_url, check_secret, is_loopback
from mainspring.core.model.alerts.notification_rules import NotificationRules, read_notifications
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, MINUTE, SECOND
from mainspring.core.model.base.secrets import ANY, DEFAULT_ALLOWED, check_secret_name
from mainspring.core.model.base.variables import check_allow_list
from mainspring.core.model.cluster.coordination import STORE
from mainspring.core.model.events.webhooks import read_webhooks
from mainspring.core.model.runs.names import ALL_TENANTS, check_name, check_tenant

#: Microseconds, written as "30s" or as a number of seconds.
Span: TypeAlias = Annotated[int, "duration"]
#: Words by name, written as "name=word word,other=word", or as a table.
Table: TypeAlias = Annotated[dict[str, tuple[str, ...]], "table"]
#: Slots by priority, written as "1:100,2:50", or as a table.
Priorities: TypeAlias = Annotated[dict[str, int], "priorities"]
#: True for all, false for none, or a table of allowed ones by name.
Commands: TypeAlias = Annotated[bool | dict[str, tuple[str, ...]], "commands"]
#: A table of settings for each name; outside of a file it is written as JSON.
Tables: TypeAlias = Annotated[dict[str, dict[str, object]], "tables"]
#: One address, or a list. A list is kept as JSON text.
Addresses: TypeAlias = Annotated[str, "addresses"]
#: Never shown, not even in errors.
Secret: TypeAlias = Annotated[str, "secret"]


class WorkerSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = ""
    """A label for this worker; the host's name and process id by default."""
    queues: dict[str, int] = msgspec.field(default_factory=dict)
    """Queues and how many of their runs go on at once, as in ``default:100,mail:20``. None named: all that the
    application uses, 100 each."""
    priorities: Priorities = msgspec.field(default_factory=dict)
    """A pool of slots for each of these priorities in every queue, as in ``1:100,2:50``. None named: one for all."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """What kind of worker this is, as in ``gpu=a100,region=eu``: runs that require labels go where these are."""
    lease: Span = 10 * SECOND
    """How long a worker that is silent keeps its runs; then they start elsewhere."""
    grace: Span = 25 * SECOND
    """How long runs may go on after the first SIGTERM."""
    children: int = 2
    """Child processes for sync tasks."""
    threads_per_child: int = 8
    """Threads in each of them."""
    child_start: Span = MINUTE
    """How long a child process may take to start and to import the application. Then runs that wait for it fail."""
    transactions: int = 5
    """Connections for handlers that ask for a transaction, on PostgreSQL."""
    capture_logs: bool = True
    """Keep what tasks print and log with their runs."""
    recycle_after_runs: int = 0
    """Leave, to be started anew, after this many runs; 0 for never."""
    recycle_memory: int = 0
    """The same when the process uses this many bytes, without its children; 0 for never."""
    recycle_child_after_runs: int = 0
    """Replace a child process after this many runs; 0 for never."""
    recycle_child_memory: int = 0
    """The same when it uses this many bytes after a run; 0 for never."""


class SchedulerSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = ""
    """A label for this scheduler; the host's name and process id by default."""
    lease: Span = 3 * SECOND // 2
    """How long a scheduler that is silent keeps its shards."""


class DispatchSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    engine: str = STORE
    """What brings workers hints of what waits: ``store``, which needs none, ``redis://…``, ``amqp://…`` or ``kafka://…``."""
    queues: Table = msgspec.field(default_factory=dict)
    """The same for some queues, as in ``mail=redis://…,default=store``; ``*`` for all others."""
    status: str = ""
    """A Redis, ``redis://…``, that shows other programs how runs and workers are, and lets workers hear of cancels."""
    key: Secret = ""
    """What hints are sealed with, the same for all processes. None: a secret that the store has made, and that whoever
    can read the whole store knows. With ``api.accept_by`` also who has submitted what Kafka has; none: nobody."""

    def __repr__(self) -> str:
        return f"DispatchSection(engine={without_secrets(self.engine)!r}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("engine", without_secrets(self.engine))]


class EventsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kafka: str = ""
    """Where events go as topics: ``kafka://host:9092``, or several hosts with commas between them."""
    status_updates: str = ""
    """A topic of short messages on the status of runs, as in ``kafka://host:9092/status_updates``."""
    redis: str = ""
    """Where events go as streams: ``redis://…``, ``redis+sentinel://…`` or ``redis+cluster://…``."""
    redis_length: int = 100_000
    """About so many events are kept in each stream."""
    webhooks: Table = msgspec.field(default_factory=dict)
    """Who is called with events, as in ``billing=https://… secret=NAME type=run.dead task=charge tenant=acme``."""
    keep: Span = DAY
    """How long events wait for whom cannot be told."""

    def check(self) -> None:
        read_webhooks(self.webhooks)

    def __repr__(self) -> str:
        return f"EventsSection(redis={without_secrets(self.redis)!r}, webhooks={', '.join(self.webhooks)!r}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("redis", without_secrets(self.redis)), ("webhooks", ", ".join(self.webhooks))]


class NotificationsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    channels: Table = msgspec.field(default_factory=dict)
    """Where people are told of problems, as in ``ops=slack secret=SLACK_URL quiet=22:00-07:00 zone=Europe/Paris``."""
    rules: Table = msgspec.field(default_factory=dict)
    """Who is told of what, as in ``bad=on=dead on=recovered to=ops task=charge* urgent``."""
    owners: Table = msgspec.field(default_factory=dict)
    """The channel of each owner of jobs, for rules with ``to=owner``; ``*`` for all others."""
    recovered_after: Span = 30 * SECOND
    """A problem is over when there was a success and nothing has failed for this long."""
    url: str = ""
    """Where people reach the dashboard: messages then hold links."""

    def read(self) -> NotificationRules:
        return read_notifications(
            self.channels, self.rules, self.owners, recovered_after=self.recovered_after, url=self.url
        )

    def __repr__(self) -> str:
        return f"NotificationsSection(channels={', '.join(self.channels)!r}, rules={', '.join(self.rules)!r}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("channels", ", ".join(self.channels)), ("rules", ", ".join(self.rules))]


class IngestSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kafka: str = ""
    """A topic of requests for jobs, as in ``kafka://host:9092/job-requests``."""
    tenant: str = DEFAULT_TENANT
    """Whom its requests are for; ``*``: each says so itself."""
    topics: Tables = msgspec.field(default_factory=dict)
    """Topics of other programs, and what job is made of each of their records: templates over ``{key}``,
    ``{headers.…}`` and ``{value.…}``, as in ``{task = "encode", ordering_key = "{value.videoId}"}``."""

    @property
    def bound_to(self) -> str | None:
        return None if self.tenant == ALL_TENANTS else self.tenant

    def check(self) -> None:
        if self.topics and not self.kafka:
            raise Invalid("ingest.topics", "has no server of Kafka", "set ingest.kafka = kafka://host:9092")
        if self.bound_to is not None:
            check_tenant("ingest.tenant", self.bound_to)

    def __repr__(self) -> str:
        return f"IngestSection(kafka={without_secrets(self.kafka)!r}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("kafka", without_secrets(self.kafka))]


class ClockSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    warn: Span = SECOND // 2
    """A node whose clock is further from the store's is warned of."""
    fence: Span = 5 * SECOND
    """A scheduler whose clock is further from it schedules nothing; 0: it does all the same."""


class RetentionSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    succeeded: Span = 7 * DAY
    unsuccessful: Span = 30 * DAY
    """Failed, cancelled and skipped runs, and attempts that did not succeed."""
    ledger: Span = 90 * DAY
    """What became of each tick; at least as long as its run."""
    short: Span = DAY
    """What has ended of jobs and tenants that chose the class ``short``, whichever way it ended …"""
    long: Span = 90 * DAY
    """… ``long`` …"""
    audit: Span = 2_557 * DAY
    """… and ``audit``: seven years."""
    archive: str = ""
    """A folder or a bucket, such as ``s3://bucket/prefix``: runs are written there before they are forgotten."""


class RunLogsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    where: str = STORE
    """Where logs of runs go that have ended: ``store``, a folder such as ``/var/lib/mainspring/blobs``, or a bucket,
    ``s3://bucket/prefix?endpoint=https://…&region=…``, ``gs://…`` or ``az://…``."""
    keep: Span = 30 * DAY
    """How long they are kept there; of the classes ``long`` and ``audit`` as long as their runs, at least. In the store
    a log goes with its run."""


class MetricsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = True
    """Runs are counted, and schedulers and workers that are started alone have ``/metrics`` and ``/healthz``."""
    host: str = "127.0.0.1"
    """The address that these listen on."""
    first_port: int = 7170
    """They take the first free port from here …"""
    last_port: int = 7199
    """… to here."""
    token: Secret = ""
    """What a scraper must say: ``Authorization: Bearer …``."""
    token_file: str = ""
    """A file that holds it."""
    names: int = 100
    """So many tasks, queues and tenants are told apart in each process; the others are counted as ``other``."""
    tenants: bool = False
    """Count by tenant, too."""
    every: Span = 10 * SECOND
    """How long figures of the fleet and of the store are good: they are read no more often."""

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
                f"{self.host} can be reached from outside, and nobody is asked who they are",
                "set metrics.token or metrics.token_file",
            )

    def __repr__(self) -> str:
        return f"MetricsSection(enabled={self.enabled!r}, host={self.host!r}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("enabled", self.enabled), ("host", self.host)]


class TracingSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = False
    """Record where work goes, for OpenTelemetry: submits, attempts and requests."""
    endpoint: str = ""
    """The collector, which takes OTLP over HTTP, as in ``http://collector:4318``. None: what
    ``OTEL_EXPORTER_OTLP_ENDPOINT`` says, or this machine."""
    ratio: float = 0.01
    """How much is recorded of what no caller has decided about."""
    service: str = "mainspring"
    """What these processes are called there; ``OTEL_SERVICE_NAME`` goes before it."""

    def check(self) -> None:
        check_name("tracing.service", self.service)
        if self.endpoint and not re.fullmatch(r"https?://[^\s/@?#]+(/[^\s?#]*)?", self.endpoint):
            raise Invalid(
                "tracing.endpoint", "is no address of a collector", "http://collector:4318, without a user or a query"
            )


class LogSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    level: str = "info"
    format: str = "auto"
    """``text``, ``json``, or ``auto``: text on a terminal."""
    runs: str = "auto"
    """Which attempts a worker logs: ``failures``, ``all``, or ``auto``: all if the format is text."""
    output: bool = False
    """Log each line that a task prints with the task and run it belongs to."""
    tracebacks: str = "full"
    """How much of a failed attempt's traceback is logged: ``full``, or ``short`` for the exception alone."""

    def check(self) -> None:
        for name, words in {
            "format": ("auto", "text", "json"),
            "runs": ("auto", "all", "failures"),
            "tracebacks": ("full", "short"),
        }.items():
            if (value := getattr(self, name)) not in words:
                raise Invalid(f"log.{name}", f"{value!r} is not one of its values", ", ".join(words))


class AuthSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mode: str = "none"
    """Who is let in: ``keys`` (API keys), ``jwt`` (tokens of an identity provider), ``both``, or ``none``: everybody on
    this machine."""
    jwt_algorithm: str = ""
    """``HS256``, ``RS256`` or ``EdDSA``. Tokens with another one are refused."""
    jwt_secret: Secret = ""
    """The shared secret of HS256, at least 32 bytes."""
    jwt_secret_file: str = ""
    """A file that holds it."""
    jwt_key_file: str = ""
    """A public key in PEM, for RS256 or EdDSA."""
    jwks_file: str = ""
    """A JSON Web Key Set, for RS256 or EdDSA."""
    jwks_url: str = ""
    """Where the provider publishes its set."""
    jwt_issuer: str = ""
    """The ``iss`` that a token must have."""
    jwt_audience: str = ""
    """The ``aud`` that a token must have."""
    jwt_role_claim: str = "role"
    jwt_tenant_claim: str = "tenant"

    @property
    def takes_keys(self) -> bool:
        return self.mode in ("keys", "both")

    @property
    def takes_tokens(self) -> bool:
        return self.mode in ("jwt", "both")

    def secret(self) -> bytes:
        """Return the secret of HS256 from the setting or from its file."""
        if self.jwt_secret_file:
            return read_file("auth.jwt_secret_file", self.jwt_secret_file).strip()
        return self.jwt_secret.encode()

    def check(self) -> None:
        if self.mode not in ("none", "keys", "jwt", "both"):
            raise Invalid("auth.mode", f"{self.mode!r} is no mode", "none, keys, jwt or both")
        named = [
            field
            for field in ("jwt_secret", "jwt_secret_file", "jwt_key_file", "jwks_file", "jwks_url")
            if getattr(self, field)
        ]
        if not self.takes_tokens:
            for field in ("jwt_algorithm", *named, "jwt_issuer", "jwt_audience"):
                if getattr(self, field):
                    # A user who sets these expects that tokens are checked.
                    raise Invalid(f"auth.{field}", f"has no use while auth.mode is {self.mode}", "jwt or both")
            return
        fitting = {
            "HS256": ("jwt_secret", "jwt_secret_file"),
            "RS256": ("jwt_key_file", "jwks_file", "jwks_url"),
            "EdDSA": ("jwt_key_file", "jwks_file", "jwks_url"),
        }.get(self.jwt_algorithm)
        if fitting is None:
            raise Invalid("auth.jwt_algorithm", f"{self.jwt_algorithm!r} is not one", "HS256, RS256 or EdDSA")
        for field in named:
            if field not in fitting:
                raise Invalid(f"auth.{field}", f"is not for {self.jwt_algorithm}", f"set {' or '.join(fitting)}")
        if len(named) != 1:
            reason = f"has no use beside auth.{named[0]}" if named else f"is missing for {self.jwt_algorithm}"
            raise Invalid(f"auth.{named[1] if named else fitting[0]}", reason, f"one of {', '.join(fitting)}")
        if self.jwt_secret:
            check_secret("auth.jwt_secret", self.jwt_secret.encode())
        if self.jwks_url:
            check_jwks_url("auth.jwks_url", self.jwks_url)
        for field in ("jwt_issuer", "jwt_audience", "jwt_role_claim", "jwt_tenant_claim"):
            if not getattr(self, field):
                raise Invalid(f"auth.{field}", "is missing", "tokens are checked for it")

    def __repr__(self) -> str:
        return f"AuthSection(mode={self.mode!r}, jwt_algorithm={self.jwt_algorithm!r}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("mode", self.mode), ("jwt_algorithm", self.jwt_algorithm)]


class ApiSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rate: float = 0
    """Requests a second of one caller, on average, in each API process; 0 for no limit."""
    burst: int = 100
    """So many at once."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of proxies whose ``X-Forwarded-For`` is believed."""
    accept_by: str = ""
    """``kafka``: while the store is away one-off jobs go to the topic of ``ingest.kafka``, and 202 is answered."""

    def check(self) -> None:
        read_networks("api.trusted_proxies", self.trusted_proxies)
        if self.accept_by not in ("", "kafka"):
            raise Invalid("api.accept_by", f"{self.accept_by!r} is no way in", "kafka, or nothing")


class UiSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = True
    """The dashboard is served beside the API."""
    read_only: bool = False
    """It shows things and changes nothing, whoever looks."""
    secret: Secret = ""
    """Seals the sessions of those who sign in. The same in every API process; drawn anew by each without it."""
    redact: tuple[str, ...] = ()
    """Names of fields whose values no page shows, in payloads and results; ``*`` stands for any characters."""


class OidcSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    issuer: str = ""
    """People sign in to the dashboard at this OpenID provider; empty: they do not."""
    client_id: str = ""
    """The dashboard as the provider knows it."""
    client_secret: Secret = ""
    """Its secret, where the provider gave it one."""
    client_secret_file: str = ""
    """A file that holds it."""
    url: str = ""
    """Where browsers find the dashboard, such as ``https://jobs.example.org/``."""
    algorithm: str = "RS256"
    """How the provider signs: ``RS256`` or ``EdDSA``."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    """What the provider is asked for."""
    group_claim: str = "groups"
    """The claim that names the groups of somebody."""
    name_claim: str = "sub"
    """The claim that somebody is called by in the audit."""
    label: str = ""
    """What the button says; the host of the provider without it."""
    roles: Table = msgspec.field(default_factory=dict)
    """By group a role, and a tenant or ``*`` for all. Of several the first counts."""

    def secret(self) -> str:
        """Return the secret from the setting or from its file."""
        if self.client_secret_file:
            return read_file("oidc.client_secret_file", self.client_secret_file).decode().strip()
        return self.client_secret

    def check(self) -> None:
        if not self.issuer:
            for field in ("client_id", "client_secret", "client_secret_file", "url", "roles"):
                if getattr(self, field):
                    raise Invalid(f"oidc.{field}", "has no use without oidc.issuer", "the address of the provider")
            return
        check_jwks_url("oidc.issuer", self.issuer)
        check_jwks_url("oidc.url", self.url)
        if self.algorithm not in ("RS256", "EdDSA"):
            raise Invalid("oidc.algorithm", f"{self.algorithm!r} is not one", "RS256 or EdDSA")
        for field in ("client_id", "group_claim", "name_claim", "roles"):
            if not getattr(self, field):
                raise Invalid(f"oidc.{field}", "is missing", "people are let in by it")
        if "openid" not in self.scopes:
            raise Invalid("oidc.scopes", "does not name openid", "openid, and what brings the groups")
        for group, words in self.roles.items():
            check_grant("oidc.roles", group, words)


class TasksSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    http: bool = True
    """Workers offer the task ``http``."""
    http_allow: tuple[str, ...] = ()
    """Networks that it may call besides public addresses."""
    scripts: str = ""
    """The folder with the scripts that the task ``shell`` may run."""
    commands: Commands = False
    """Commands that it may run, too: names, each with a program and its first arguments; ``true`` for any."""
    env: tuple[str, ...] = ()
    """Variables that the field ``env`` of a ``shell`` payload may set; none by default."""
    user: str = ""
    """Whom scripts and commands run as; for workers that run as root."""
    memory: int = 0
    """Bytes that one of them may use, or a container; 0 for no limit."""
    cpus: float = 0
    """Processors' worth of time, as in 0.5; 0 for no limit."""
    cpu_time: Span = 0
    """Time on a processor that each of their processes may use; 0 for no limit."""
    open_files: int = 0
    """Files that each of them may have open; 0 for the worker's own limit."""
    processes: int = 0
    """Processes that there may be of one; 0 for no limit, and 1000 in a container."""
    cgroup: str = ""
    """A cgroup (v2) of the worker's, in which each gets one of its own; by default the worker's own, where it may."""
    containers: str = ""
    """Workers offer the task ``container``, by the command line of ``podman`` or ``docker``."""
    images: tuple[str, ...] = ()
    """Images that it may run; one that ends with a star stands for all that begin so."""
    network: str = "none"
    """The network of containers."""

    def check(self) -> None:
        if self.containers not in ("", "podman", "docker"):
            raise Invalid("tasks.containers", f"{self.containers!r} is no engine", "podman or docker")
        if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", self.network) or self.network == "host":
            # The host network reaches the machine's metadata service and its loopback.
            raise Invalid("tasks.network", f"{self.network!r} is not a network for containers", "none, or a name")
        for name, argv in ({} if isinstance(self.commands, bool) else self.commands).items():
            check_name("tasks.commands", name)
            if not argv:
                raise Invalid("tasks.commands", f"{name} names no program")
        check_allow_list("tasks.env", self.env)
        for text in self.http_allow:
            try:
                ip_network(text)
            except ValueError:
                raise Invalid("tasks.http_allow", f"{text!r} is not a network", "for example 10.1.0.0/16") from None


class VaultSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    address: str = ""
    """Where Vault is, such as ``https://vault.example:8200``; empty: there is none."""
    mount: str = "secret"
    """Where its engine KV, version 2, is mounted."""
    path: str = "mainspring"
    """The secret there whose fields are ours."""
    namespace: str = ""
    """Of Vault Enterprise."""
    token_file: str = ""
    """A file with the token; without it ``VAULT_TOKEN`` counts."""
    role_id: str = ""
    """Sign in by AppRole, as this role."""
    secret_id_file: str = ""
    """A file with what the role has to know."""
    ca_file: str = ""
    """Who signed its certificate, in PEM; without it whom the system trusts."""
    keep: Span = MINUTE
    """How long what it said counts: a new value is used after twice as long at most."""

    def check(self) -> None:
        if not self.address:
            for field in ("namespace", "token_file", "role_id", "secret_id_file", "ca_file"):
                if getattr(self, field):
                    raise Invalid(f"vault.{field}", "has no use without vault.address", "https://vault.example:8200")
            return
        check_jwks_url("vault.address", self.address)
        for field in ("mount", "path"):
            if not getattr(self, field):
                raise Invalid(f"vault.{field}", "is missing")
        if bool(self.role_id) != bool(self.secret_id_file):
            missing = "secret_id_file" if self.role_id else "role_id"
            raise Invalid(f"vault.{missing}", "is missing", "AppRole needs a role and what it has to know")
        if self.role_id and self.token_file:
            raise Invalid("vault.token_file", "there is a role as well", "one of the two")


class SecretsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    folder: str = ""
    """A folder with a file for each secret, beside those in the environment as ``MAINSPRING_SECRET_NAME``."""
    allow: Table = msgspec.field(default_factory=lambda: dict(DEFAULT_ALLOWED))
    """Which secrets the runs of a tenant may use, by tenant; ``*`` for all."""

    def check(self) -> None:
        for tenant, names in self.allow.items():
            check_tenant("secrets.allow", tenant)
            for name in names:
                if name != ANY:
                    check_secret_name("secrets.allow", name)


class BlobsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    credentials_file: str = ""
    """A file with the credentials of buckets, as lines such as ``AWS_SECRET_ACCESS_KEY=…``. Without it they come from
    the environment under these names, or from the machine's role."""

    def read(self) -> dict[str, str]:
        """Return the credentials by name. Errors never contain text of the file."""
        if not self.credentials_file:
            return {}
        text = read_file("blobs.credentials_file", self.credentials_file).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines()]
        found = {}
        for number, line in enumerate(lines, 1):
            if not line or line.startswith("#"):
                continue
            name, equals, value = line.partition("=")
            if not equals or not re.fullmatch("[A-Z][A-Z0-9_]*", name):
                raise Invalid("blobs.credentials_file", f"line {number} is not NAME=value", "AWS_ACCESS_KEY_ID=…")
            found[name] = value
        return found


def read_file(where: str, path: str) -> bytes:
    """Read a file that a setting names."""
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise Invalid(where, f"{path} cannot be read: {error.strerror}") from None


def servers_of(store: str) -> tuple[str, ...]:
    """Return the addresses of a sharded store, or none if the store is not a list."""
    if not store.startswith("["):
        return ()
    try:
        addresses = msgspec.json.decode(store, type=tuple[str, ...])
    except (msgspec.DecodeError, ValueError):
        # The message must not repeat the value: it could contain a part of a password.
        raise Invalid("store", "is not a list of addresses in JSON", '["postgresql://…", "postgresql://…"]') from None
    if not addresses or not all(address.startswith(("postgresql://", "postgres://")) for address in addresses):
        raise Invalid("store", "a list names PostgreSQL servers alone", '["postgresql://…", "postgresql://…"]')
    if len(set(addresses)) < len(addresses):
        raise Invalid("store", "names a server twice")
    return addresses


def without_secrets(store: str) -> str:
    """Return a store's address for display: without passwords and options."""
    if store.startswith("["):
        return ", ".join(map(without_secrets, servers_of(store)))
    scheme, separator, rest = store.partition("://")
    if not separator:
        return store
    place, _, options = rest.partition("?")
    if "@" in options:
        # A password may contain a question mark, so its end is ambiguous.
        return f"{scheme}://…"
    credentials, at, address = place.rpartition("@")
    return f"{scheme}://{credentials.partition(':')[0]}{at}{address}"
