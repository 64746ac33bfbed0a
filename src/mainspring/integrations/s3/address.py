"""Addresses of object storage: a folder, or a bucket of S3, Google Cloud or Azure."""

import re
from typing import Literal

import msgspec

from mainspring.core.model.base.addresses import read_options
from mainspring.core.model.base.errors import Invalid

_HINT = "/a/folder, file:///a/folder, s3://bucket/prefix?endpoint=https://host&region=eu-west-1, gs://… or az://…"
_BUCKET = re.compile(
    r"(?P<kind>s3|gs|az)://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]{0,254})(?:/(?P<prefix>[^?#]*))?(?:\?(?P<options>[^#]*))?"
)
_PREFIX = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]*(/[A-Za-z0-9_=-][A-Za-z0-9._=-]*)*")
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+/?")
_REGION = re.compile(r"[A-Za-z0-9-]{1,60}")


class BlobAddress(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal["file", "s3", "gs", "az"]
    #: The folder, or the name of the bucket.
    location: str
    #: Bucket only: the prefix of every object name.
    prefix: str = ""
    #: S3 only: a server other than Amazon's, and the region for request signatures.
    endpoint: str = ""
    region: str = ""

    @property
    def shown(self) -> str:
        """The address for display. It never contains credentials."""
        if self.kind == "file":
            return self.location
        return f"{self.kind}://{self.location}" + (f"/{self.prefix}" if self.prefix else "")


def parse_blob_address(text: str, field: str) -> BlobAddress:
    scheme, colon, rest = text.partition("://")
    if not colon or scheme == "file":
        folder = rest if colon else text
        if not folder.startswith(("/", "./", "../", "~/")) or "\0" in folder:
            raise Invalid(field, f"{text!r:.80} is not a folder", _HINT)
        return BlobAddress(kind="file", location=folder)
    found = _BUCKET.fullmatch(text)
    if found is None:
        # The message must not repeat the address: it could contain a password.
        raise Invalid(field, "is not the address of a bucket; credentials are no part of it", _HINT)
    kind, prefix = found["kind"], (found["prefix"] or "").strip("/")
    if prefix and not _PREFIX.fullmatch(prefix):
        raise Invalid(field, f"{prefix!r:.80} is not a prefix: letters, digits and ._=-, with slashes between", _HINT)
    others = ("endpoint", "region") if kind == "s3" else ()
    _, options = read_options(field, found["options"] or "", _HINT, tls=False, others=others)
    endpoint, region = options.get("endpoint", ""), options.get("region", "")
    if endpoint and not _ENDPOINT.fullmatch(endpoint):
        raise Invalid(field, "has an endpoint that is not http://host:port or https://host:port", _HINT)
    if region and not _REGION.fullmatch(region):
        raise Invalid(field, f"{region!r:.80} is not a region", _HINT)
    return BlobAddress(
        kind="s3" if kind == "s3" else "gs" if kind == "gs" else "az",
        location=found["bucket"],
        prefix=prefix,
        endpoint=endpoint.rstrip("/"),
        region=region,
    )
