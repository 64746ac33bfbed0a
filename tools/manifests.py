"""The files of deploy/kubernetes, rendered from the chart: ``python -m tools.manifests``, or ``make manifests``."""

import subprocess
import sys
from pathlib import Path

from tools.services import ServiceUnavailable, ensure
from tools.services.kubernetes import VERSIONS

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "helm" / "mainspring"
FOLDER = ROOT / "deploy" / "kubernetes"
_ONE = ["--show-only=templates/autoscaling.yaml"]
#: By file: additional arguments for Helm.
FILES = {
    "mainspring.yaml": list[str](),
    "hpa.yaml": [*_ONE, "--set=worker.autoscaling.by=hpa"],
    "keda.yaml": [*_ONE, "--set=worker.autoscaling.by=keda"],
}


def rendered(helm: str, *options: str, release: str = "mainspring") -> str:
    command = [helm, "template", release, str(CHART), "--namespace=mainspring", f"--kube-version={VERSIONS[-1]}"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip())
    return done.stdout


def manifest(helm: str, name: str) -> str:
    """A file of the folder. Helm does not manage what it makes."""
    lines = rendered(helm, *FILES[name]).splitlines(keepends=True)
    head = "# Made by `make manifests` from deploy/helm/mainspring.\n"
    return head + "".join(line for line in lines if "managed-by: Helm" not in line and "# Source: " not in line)


def main() -> int:
    try:
        helm = ensure("helm")
    except ServiceUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    for name in FILES:
        (FOLDER / name).write_text(manifest(helm, name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
