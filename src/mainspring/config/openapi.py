"""``python -m mainspring.config.openapi`` prints the OpenAPI document of the whole API."""

import sys
from importlib import metadata

from mainspring.config.resources import RESOURCES
from mainspring.http.docs.openapi import document, pretty

if __name__ == "__main__":
    sys.stdout.write(pretty(document(RESOURCES, metadata.version("mainspring"))))
