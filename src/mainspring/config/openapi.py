"""``python -m mainspring.config.openapi`` prints the OpenAPI document of the whole API."""

import sys
from importlib import metadata

from mainspring.config.resources import RESOURCES
from mainspring.http.docs.openapi import build_document, format_json

if __name__ == "__main__":
    sys.stdout.write(format_json(build_document(RESOURCES, metadata.version("mainspring"))))
