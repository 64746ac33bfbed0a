"""Access of HTTP workers to their own session."""

from mainspring.core.model.access.access import Principal
from mainspring.core.ports.storage.catalog import SessionView
from mainspring.http.context import Api
from mainspring.http.problems import ObjectNotFound
from mainspring.http.schemas.common import parse_session


async def find_worker(api: Api, principal: Principal, text: str) -> SessionView:
    """Return the session of the caller, alive or not. Raises ``ObjectNotFound`` for a session of another principal."""
    worker = await api.workers.find_session(parse_session(text))
    if worker is None or worker.owner != principal.name:
        raise ObjectNotFound
    return worker
