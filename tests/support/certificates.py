"""Certificates for servers with TLS."""

import subprocess
from pathlib import Path


def make_certificate(folder: Path, name: str = "localhost") -> None:
    """Write key.pem and a self-signed certificate.pem, for a name and for the address 127.0.0.1."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", f"/CN={name}"),
            *("-addext", f"subjectAltName=IP:127.0.0.1,DNS:{name}", "-keyout", "key.pem", "-out", "certificate.pem"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
