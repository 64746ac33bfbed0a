"""Certificates for servers with TLS."""

import subprocess
from pathlib import Path


def make_certificate(folder: Path) -> None:
    """Write key.pem and a self-signed certificate.pem for servers and clients on this machine."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", "key.pem", "-out", "certificate.pem"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
