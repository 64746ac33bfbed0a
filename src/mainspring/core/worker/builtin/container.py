"""The task ``container``: run a program in an image, using the command line of podman or docker."""

import asyncio
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mainspring.core.model.base.decode_errors import explain_payload_error
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.model.base.variables import check_names
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.runtime.log import get_logger
from mainspring.core.worker.builtin.confinement import Limits
from mainspring.core.worker.builtin.failures import ContainerFailed, OutOfMemory, for_good
from mainspring.core.worker.builtin.process import ProgramSpec, in_memory
from mainspring.core.worker.builtin.running import BuiltinTask, read_exit_codes, read_limit, run
from mainspring.core.worker.builtin.shell import build_environment
from mainspring.core.worker.handler import AsyncHandler
from mainspring.core.worker.secrets import NO_SECRETS, Keyring

TASK = "container"
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,499}")
#: Variables that the client gets from the worker's environment. The payload cannot set them, and the container gets
#: none.
CLIENT_VARIABLES = (
    *("HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "CONTAINER_HOST", "CONTAINER_SSHKEY"),
    *("DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY"),
)
_CLEANING = 30.0

_log = get_logger("mainspring.container")


class ContainerCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The payload."""

    image: str
    #: Arguments for the program of the image.
    command: list[str] = []
    env: dict[str, str] = {}
    #: A string is passed unchanged, any other value as JSON.
    stdin: msgspec.Raw = msgspec.Raw()
    timeout: int | float | str | None = None
    exit_codes: dict[str, str] = {}


_decode = msgspec.json.Decoder(ContainerCall).decode


class Containers:
    """The container engine, and the rules for running images with it."""

    def __init__(
        self,
        engine: str = "",
        images: Sequence[str] = (),
        *,
        network: str = "none",
        limits: Limits | None = None,
        grace: Micros = 2 * SECOND,
    ) -> None:
        self._engine = engine
        self._images = images
        self._network = network
        self._limits = limits or Limits()
        self._grace = grace

    @property
    def on(self) -> bool:
        return bool(self._engine)

    def check(self, payload: bytes) -> ContainerCall:
        """Raise ``Invalid`` if such a payload cannot be run with these settings."""
        if not self.on:
            raise Invalid("task", "running containers is off here", "tasks.containers = podman or docker")
        try:
            call = _decode(payload)
        except msgspec.MsgspecError as error:
            raise explain_payload_error(
                error, ContainerCall, payload, 'for example {"image": "registry.example/report:1"}'
            ) from None
        if not _REFERENCE.fullmatch(call.image):
            raise Invalid("payload.image", f"{call.image[:80]!r} is not an image")
        if not any(_allows(pattern, call.image) for pattern in self._images):
            raise Invalid("payload.image", f"{call.image} is not allowed here", "tasks.images names what is")
        check_names("payload.env", call.env)
        env_file(call.env)
        for word in [*call.command, *call.env.values()]:
            if "\x00" in word:
                raise Invalid("payload", "an argument cannot hold a zero character")
        read_limit(call.timeout)
        read_exit_codes(call.exit_codes)
        return call

    def argv(self, call: ContainerCall, held: HeldRun, variables: int) -> list[str]:
        """Return the client's arguments: no network, no files of the host, no privileges.

        ``variables`` is the descriptor of the env file. Values are not passed as arguments, which
        every user of the host can read. Nor are they in the client's environment, where they could select the engine.
        """
        limits = self._limits
        words = [
            self._engine,
            "run",
            "--interactive",
            f"--name={build_container_name(held)}",
            f"--label=mainspring.run={held.id}",
        ]
        words += [f"--network={self._network}", "--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--init"]
        words += ["--security-opt=no-new-privileges", f"--pids-limit={limits.processes or 1_000}"]
        if limits.memory:
            words += [f"--memory={limits.memory}", f"--memory-swap={limits.memory}"]
        if limits.cpus:
            words.append(f"--cpus={limits.cpus:g}")
        if limits.open_files:
            words.append(f"--ulimit=nofile={limits.open_files}")
        words.append(f"--env-file=/dev/fd/{variables}")
        return [*words, call.image, *call.command]

    def handler(self, keyring: Keyring = NO_SECRETS) -> AsyncHandler:
        async def invoke(held: HeldRun) -> bytes:
            try:
                call = self.check(held.payload)
            except Invalid as error:
                raise for_good(ContainerFailed, str(error)) from None
            if keyring.needed(held.tenant, held.payload):
                call = filled(call, lambda value: keyring.fill(held.tenant, value))
            # Remove the container of an earlier attempt whose worker died.
            await asyncio.to_thread(self._remove, held)
            try:
                return await self._run(call, held)
            finally:
                # Also after a cancellation: the engine's client is gone then, but the container may still run.
                await _whatever_happens(asyncio.to_thread(self._remove, held))

        return AsyncHandler(TASK, invoke, harmless=True)

    async def _run(self, call: ContainerCall, held: HeldRun) -> bytes:
        stdin = bytes(call.stdin)
        try:
            variables = env_file({**_run_variables(held), **call.env})
        except Invalid as error:
            # A secret may contain characters that a payload cannot.
            raise for_good(ContainerFailed, str(error)) from None
        with in_memory(variables) as file:
            task = BuiltinTask(
                kind=ContainerFailed,
                name=call.image,
                order=ProgramSpec(
                    argv=self.argv(call, held, file.fileno()),
                    environment={**client_environment(), **_run_variables(held)},
                    folder="/",
                    # A rootless engine gets its privileges from setuid programs.
                    no_new_privileges=False,
                    descriptors=(file.fileno(),),
                ),
                stdin=msgspec.json.decode(stdin, type=str).encode() if stdin.startswith(b'"') else stdin,
                limit=read_limit(call.timeout),
                grace=self._grace,
                codes=read_exit_codes(call.exit_codes),
                memory=self._limits.memory,
                memory_counted=True,
            )
            try:
                return await run(task, held)
            except ContainerFailed as failed:
                if await asyncio.to_thread(self._ran_out_of_memory, held):
                    raise OutOfMemory(f"{failed}\n{call.image} ran out of memory") from None
                raise

    def _ran_out_of_memory(self, held: HeldRun) -> bool:
        found = self._ask("inspect", "--format={{.State.OOMKilled}}", build_container_name(held))
        return found is not None and found.stdout.strip() == b"true"

    def _remove(self, held: HeldRun) -> None:
        self._ask("rm", "--force", build_container_name(held))

    def _ask(self, *words: str) -> "subprocess.CompletedProcess[bytes] | None":
        try:
            return subprocess.run(
                [self._engine, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=client_environment(),
                timeout=_CLEANING,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            _log.warning("container engine does not answer", engine=self._engine, error=str(error))
            return None


def build_container_name(held: HeldRun) -> str:
    """Return the container's name: the same for every attempt of a run, so that the next one finds leftovers."""
    return f"mainspring-{held.id}"


def filled(call: ContainerCall, fill: Callable[[Any], Any]) -> ContainerCall:
    stdin = msgspec.Raw(msgspec.json.encode(fill(msgspec.json.decode(call.stdin)))) if bytes(call.stdin) else call.stdin
    return msgspec.structs.replace(call, command=fill(call.command), env=fill(call.env), stdin=stdin)


def find_engine(name: str) -> None:
    """Raise ``Invalid`` if there is no such program."""
    if not any((Path(folder) / name).exists() for folder in os.get_exec_path()):
        raise Invalid("tasks.containers", f"there is no {name} here")


def client_environment() -> dict[str, str]:
    """Return the environment of the engine's client, which no payload can change."""
    fixed = {"PATH": os.environ.get("PATH", os.defpath), "LANG": os.environ.get("LANG", "C.UTF-8")}
    return fixed | {name: os.environ[name] for name in CLIENT_VARIABLES if name in os.environ}


def env_file(variables: Mapping[str, str]) -> bytes:
    """Return the file that gives these variables to a container.

    Raises ``Invalid`` for a value with a line break: the rest of it would be read as another variable.
    """
    for name, value in variables.items():
        if "\n" in value or "\r" in value:
            raise Invalid("payload.env", f"{name} holds a line break, which a container cannot receive", "use stdin")
    return "".join(f"{name}={value}\n" for name, value in variables.items()).encode()


def _run_variables(held: HeldRun) -> dict[str, str]:
    return {name: value for name, value in build_environment(held).items() if name.startswith("MAINSPRING_")}


def _allows(pattern: str, image: str) -> bool:
    """Match an image name exactly, or by prefix if the pattern ends with a star."""
    return image.startswith(pattern[:-1]) if pattern.endswith("*") else image == pattern


async def _whatever_happens(work: Any) -> None:
    """Run to the end, even if this task is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
