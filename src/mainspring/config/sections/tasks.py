"""The sections of built-in tasks and of the secrets that runs may read."""

import re
from ipaddress import ip_network

import msgspec

from mainspring.config.sections.values import Commands, Span, Table
from mainspring.core.model.access.token_rules import check_jwks_url
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MINUTE
from mainspring.core.model.base.secrets import ANY, DEFAULT_ALLOWED, check_secret_name
from mainspring.core.model.base.variables import check_allow_list
from mainspring.core.model.runs.names import check_name, check_tenant


class TasksSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    http: bool = True
    """Workers offer the task ``http``."""
    http_allow: tuple[str, ...] = ()
    """Networks that the task ``http`` may call besides public addresses."""
    scripts: str = ""
    """The folder with the scripts that the task ``shell`` may run."""
    commands: Commands = False
    """Commands that the task ``shell`` may run: names, each with a program and its first arguments; ``true``
    for any command."""
    env: tuple[str, ...] = ()
    """Variables that the field ``env`` of a ``shell`` payload may set; none by default."""
    user: str = ""
    """The user that scripts and commands run as, for workers that run as root."""
    memory: int = 0
    """Bytes that a script, command or container may use; 0 for no limit."""
    cpus: float = 0
    """Processors that a script, command or container may use, as in 0.5; 0 for no limit."""
    cpu_time: Span = 0
    """Processor time that each of their processes may use; 0 for no limit."""
    open_files: int = 0
    """Files that each of their processes may have open; 0 for the worker's own limit."""
    processes: int = 0
    """Processes that one of them may have; 0 for no limit, and 1000 in a container."""
    cgroup: str = ""
    """A cgroup (v2) of the worker, in which each script or command gets its own. Default: the worker's cgroup,
    if a limit needs one."""
    containers: str = ""
    """``podman`` or ``docker``: workers offer the task ``container``, by this command line."""
    images: tuple[str, ...] = ()
    """Images that the task ``container`` may run. ``*`` at the end stands for any characters."""
    network: str = "none"
    """The network of containers."""

    def check(self) -> None:
        if self.containers not in ("", "podman", "docker"):
            raise Invalid("tasks.containers", f"{self.containers!r} is not a container program", "podman or docker")
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


class SecretsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    folder: str = ""
    """A folder with a file for each secret, besides environment variables such as
    ``MAINSPRING_SECRET_NAME``."""
    allow: Table = msgspec.field(default_factory=lambda: dict(DEFAULT_ALLOWED))
    """The secrets that the runs of each tenant may use, by tenant; ``*`` for all."""

    def check(self) -> None:
        for tenant, names in self.allow.items():
            check_tenant("secrets.allow", tenant)
            for name in names:
                if name != ANY:
                    check_secret_name("secrets.allow", name)


class VaultSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    address: str = ""
    """The address of Vault, such as ``https://vault.example:8200``. Default: none."""
    mount: str = "secret"
    """The mount point of its KV secrets engine, version 2."""
    path: str = "mainspring"
    """The secret whose fields are the secrets of runs."""
    namespace: str = ""
    """The namespace in Vault Enterprise."""
    token_file: str = ""
    """A file with the token. Default: ``VAULT_TOKEN``."""
    role_id: str = ""
    """The role id for signing in by AppRole."""
    secret_id_file: str = ""
    """A file with the secret id of the AppRole."""
    ca_file: str = ""
    """The certificate authority of Vault's certificate, in PEM. Default: the authorities that the system
    trusts."""
    keep: Span = MINUTE
    """How long values are cached. A changed value is used after twice this time at most."""

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
            raise Invalid(f"vault.{missing}", "is missing", "AppRole needs role_id and secret_id_file")
        if self.role_id and self.token_file:
            raise Invalid("vault.token_file", "there is a role as well", "one of the two")
