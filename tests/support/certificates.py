"""For servers that speak TLS in a test."""

import subprocess
from pathlib import Path


def make_certificate(folder: Path) -> None:
    """key.pem and certificate.pem, which vouches for itself and is good for servers and clients."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "certificate.pem"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
