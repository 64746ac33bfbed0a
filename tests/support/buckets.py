"""Buckets of a real S3 server for tests."""

import uuid
from pathlib import Path

from tests.support.servers import started
from tools.services import all_services
from tools.services.s3 import ACCESS_KEY, REGION, S3, SECRET_KEY

CREDENTIALS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


def shared_s3() -> S3:
    """The running server that all tests share."""
    server = all_services()["s3"]
    assert isinstance(server, S3)
    started(server)
    return server


def new_bucket(server: S3) -> str:
    """Create a bucket for one test; its address in the settings."""
    name = f"test-{uuid.uuid4().hex}"
    server.bucket(name)
    return bucket_address(server, name)


def bucket_address(server: S3, name: str) -> str:
    return f"s3://{name}/some/prefix?endpoint={server.address()}&region={REGION}"


def credentials_file(folder: Path, credentials: dict[str, str] = CREDENTIALS) -> Path:
    file = folder / "credentials"
    file.write_text("# for tests\n" + "".join(f"{name}={value}\n" for name, value in credentials.items()))
    return file
