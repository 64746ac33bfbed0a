"""Programs that generate clients from the OpenAPI document, and what compiles the result."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tools.services.go_module import GoProgram
from tools.services.maven import JavaLibraries
from tools.services.program import Program
from tools.services.service import ServiceUnavailable, cache, install_packages

_HERE = Path(__file__).parent
_INSTALLED_WITHIN_SECONDS = 900
#: Makes `go mod vendor` copy the library that the code of oapi-codegen imports.
_IMPORTS = 'package mainspring\n\nimport _ "github.com/oapi-codegen/runtime"\n'


class OpenApiGenerator(JavaLibraries):
    """The address is the folder of the one jar."""

    name = "openapi-generator"
    project = _HERE / "openapi-generator.xml"


class JavaClient(JavaLibraries):
    name = "java-client"
    project = _HERE / "java-client.xml"


class NodePackages(Program):
    """The packages of ``node.json``. The address is the folder ``node_modules``."""

    name = "node-packages"
    packages = ("nodejs", "npm")
    manifest = _HERE / "node.json"

    @property
    def folder(self) -> Path:
        return cache() / f"node-{hashlib.sha256(self.manifest.read_bytes()).hexdigest()[:12]}"

    def path(self) -> str:
        return str(self.folder / "node_modules") if self.folder.exists() and shutil.which("npx") else ""

    def missing_packages(self) -> tuple[str, ...]:
        return () if shutil.which("npm") and shutil.which("npx") else self.packages

    def install(self) -> None:
        if missing := self.missing_packages():
            install_packages(self.name, missing, self.home)
        cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache()) as scratch:
            project = Path(scratch) / "project"
            project.mkdir()
            shutil.copyfile(self.manifest, project / "package.json")
            command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--silent"]
            _run(self.name, command, project)
            if not self.folder.exists():
                project.rename(self.folder)


class OapiCodegen(GoProgram):
    """A generator of Go clients, and a module with the library that they import, vendored in ``module_folder``."""

    name = "oapi-codegen"
    module = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen"
    version = "v2.8.2"
    library = "github.com/oapi-codegen/runtime@v1.8.0"

    @property
    def module_folder(self) -> Path:
        return cache() / f"oapi-codegen-runtime-{self.library.partition('@')[2]}"

    def installed(self) -> bool:
        return super().installed() and self.module_folder.exists()

    def install(self) -> None:
        if not super().installed():
            super().install()
        with tempfile.TemporaryDirectory(dir=cache()) as scratch:
            project = Path(scratch) / "module"
            project.mkdir()
            (project / "imports.go").write_text(_IMPORTS)
            for command in (
                ["go", "mod", "init", "mainspring"],
                ["go", "get", self.library],
                ["go", "mod", "tidy"],
                ["go", "mod", "vendor"],
            ):
                _run(self.name, command, project)
            if not self.module_folder.exists():
                project.rename(self.module_folder)


def _run(name: str, command: list[str], folder: Path) -> None:
    environment = os.environ | {"GOFLAGS": "-modcacherw"}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_INSTALLED_WITHIN_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise ServiceUnavailable(f"{name} cannot be had: {' '.join(command)} did not end") from error
    if done.returncode != 0:
        said = done.stdout[-1000:] + done.stderr[-1000:]
        raise ServiceUnavailable(f"{name} cannot be had: {' '.join(command)}\n{said}")
