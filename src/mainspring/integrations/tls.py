"""Builds TLS contexts from the files that the settings name."""

import ssl

from mainspring.core.model.base.addresses import Tls
from mainspring.core.model.base.errors import Invalid


def build_tls_context(tls: Tls | None, field: str) -> ssl.SSLContext | None:
    if tls is None:
        return None
    # OSError does not name the file, so remember which one is being read.
    reading = tls.authority
    try:
        context = ssl.create_default_context(cafile=tls.authority or None)
        reading = tls.certificate
        if tls.certificate:
            context.load_cert_chain(tls.certificate, tls.key or None)
    except OSError as error:
        why = f"cannot use {reading}: {error.strerror or error}"
        raise Invalid(field, why, "files in PEM: ssl_ca_certs, ssl_certfile, ssl_keyfile") from error
    return context
