"""What looks at files for Kubernetes: Helm and kubeconform, with the schemas of some versions of Kubernetes."""

import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tools.services.go_module import GoProgram
from tools.services.service import ServiceUnavailable, cache

#: The oldest that the chart names, and a newer one.
VERSIONS = ("1.29.0", "1.37.0")
#: A package of Python that carries them, so that they need not be downloaded file by file.
_SCHEMAS = "kubernetes-validate==1.37.0"


class Helm(GoProgram):
    name = "helm"
    module = "helm.sh/helm/v3/cmd/helm"
    version = "v3.22.0"


class Kubeconform(GoProgram):
    name = "kubeconform"
    module = "github.com/yannh/kubeconform/cmd/kubeconform"
    version = "v0.8.0"

    @property
    def schemas(self) -> Path:
        """A folder for each version, as kubeconform names them."""
        return cache() / f"kubernetes-schemas-{'-'.join(VERSIONS)}"

    def installed(self) -> bool:
        return super().installed() and self.schemas.exists()

    def install(self) -> None:
        if not super().installed():
            super().install()
        self._unpack_schemas()

    def _unpack_schemas(self) -> None:
        cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache()) as scratch:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            command += ["--no-deps", "--only-binary=:all:", f"--dest={scratch}", _SCHEMAS]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise ServiceUnavailable(f"{self.name} has no schemas: {' '.join(command)}\n{done.stderr[-2000:]}")
            [wheel] = Path(scratch).glob("*.whl")
            found = Path(scratch) / "schemas"
            with zipfile.ZipFile(wheel) as archive:
                for version in VERSIONS:
                    folder = f"v{version}-standalone-strict"
                    (found / folder).mkdir(parents=True)
                    for name in archive.namelist():
                        if f"/v{version}-local-strict/" in name:
                            # They name each other by addresses on the internet: as neighbours here.
                            schema = json.loads(archive.read(name).replace(b'"/api/_definitions', b'"_definitions'))
                            schema.pop("$id", None)
                            (found / folder / Path(name).name).write_text(json.dumps(schema))
            if not any(found.rglob("deployment-apps-v1.json")):
                raise ServiceUnavailable(f"{self.name}: no schemas in {_SCHEMAS}")
            shutil.rmtree(self.schemas, ignore_errors=True)
            found.rename(self.schemas)
