"""Connects commands: to an API over the network, or to a store through the same handlers in this process."""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from mainspring.cli import logs
from mainspring.cli.client import profiles
from mainspring.cli.client.candidates import Candidate, choose_one
from mainspring.cli.options import load_settings
from mainspring.config.sections.monitoring import LogSection
from mainspring.config.settings import Settings
from mainspring.core.model.base.errors import Invalid, NotFound, StoreUnavailable
from mainspring.core.model.base.ids import is_id
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.ports.clock import Clock

if TYPE_CHECKING:
    from mainspring.config.runtime import Runtime
    from mainspring.sdk.backends.client import ApiClient

P = ParamSpec("P")
T = TypeVar("T")
Raw: TypeAlias = msgspec.Raw

#: How long an unreachable API is retried: less than the client's half minute, because a person waits at a terminal.
_PATIENCE: Micros = 3 * SECOND
#: How long a broken stream is reconnected.
_STREAM_PATIENCE: Micros = 60 * SECOND
_PAGE = 1_000
#: The most items on one page of the list of workflows.
_SMALL_PAGE = 100
_SHORTEST_PART = 6


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a command: the URL of an API, or the settings of a store."""

    url: str = ""
    key: str | None = None
    settings: Settings | None = None
    tenant: str | None = None


class Client:
    """A client of the API for one command."""

    def __init__(self, api: "ApiClient", tenant: str | None, *, is_local: bool) -> None:
        self._api = api
        self.tenant = tenant
        self.is_local = is_local

    @property
    def clock(self) -> Clock:
        return self._api.clock

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        query: Mapping[str, object] | None = None,
        repeatable: bool | None = None,
    ) -> Raw:
        """Send a request and return the raw answer."""
        return await self._api.ask(method, path, Raw, body=body, query=query, repeatable=repeatable)

    async def pages(self, path: str, query: Mapping[str, object], limit: int, *, largest: int = _PAGE) -> "ItemPage":
        """Return the items of a list, over as many pages as needed."""
        items: list[Raw] = []
        cursor: str | None = None
        while True:
            asked = {**query, "limit": min(limit - len(items), largest), "cursor": cursor}
            page = decode_answer(await self.ask("GET", path, query=asked), ItemPage)
            items += page.items
            cursor = page.next_cursor
            if cursor is None or len(items) >= limit:
                return ItemPage(items=items, next_cursor=cursor)

    async def events(
        self, path: str, query: Mapping[str, object] | None = None
    ) -> AsyncGenerator[tuple[str, Raw], None]:
        """Yield server-sent events as (kind, data). A broken stream continues after the last event received."""
        last = ""
        # A stream that never started probably has a wrong address, so stop retrying sooner.
        retry_until = self.clock.monotonic() + _PATIENCE
        while True:
            kind, data = "", ""
            try:
                headers = {"last-event-id": last} if last else None
                async with aclosing(self._api.lines(path, query, headers)) as lines:
                    async for line in lines:
                        retry_until = self.clock.monotonic() + _STREAM_PATIENCE
                        name, _, value = line.partition(": ")
                        if name == "id":
                            last = value
                        elif name == "event":
                            kind = value
                        elif name == "data":
                            data = value
                        elif not line and data:
                            yield kind, Raw(data.encode())
                            kind, data = "", ""
            except StoreUnavailable:
                if self.clock.monotonic() > retry_until:
                    raise
            if self.is_local or self.clock.monotonic() > retry_until:
                return
            await self.clock.sleep(500 * MILLISECOND)

    async def job(self, text: str) -> str:
        """Return the id of a job, given its id, its name, or a unique part of its id."""
        if not text.strip():
            # An empty name would match jobs without a name.
            raise Invalid("job", "is empty", "an id or a name")
        if is_id(text):
            return text
        # Names of recurring jobs are unique within a tenant; one-off jobs may share names.
        for kind in ("recurring", "oneOff"):
            query = {"text": text[:200], "kind": kind, "tenant": self.tenant}
            named = [job for job in await self._candidates("/v1/jobs", query) if job.name == text]
            if len(named) > 1 and kind == "recurring":
                tenants = ", ".join(sorted({job.tenant for job in named}))
                raise Invalid("job", f"{text!r} is the name of {len(named)} jobs", f"--tenant, one of {tenants}")
            if named:
                return choose_one(named, "job", f"{text!r} is the name of {len(named)} jobs")
        return await self._find_by_part("/v1/jobs", text, "job", searches=True)

    async def run(self, text: str) -> str:
        """Return the id of a run, given its id or a unique part of it."""
        return text if is_id(text) else await self._find_by_part("/v1/runs", text, "run", searches=True)

    async def workflow(self, text: str) -> str:
        """Return the id of a workflow, given its id, a unique part of it, or its name if only one has it."""
        if is_id(text):
            return text
        query = {"text": text[:200], "tenant": self.tenant}
        named = [one for one in await self._candidates("/v1/workflows", query, _SMALL_PAGE) if one.name == text]
        if named:
            return choose_one(named, "workflow", f"{text!r} is the name of {len(named)} workflows")
        return await self._find_by_part("/v1/workflows", text, "workflow", searches=False, largest=_SMALL_PAGE)

    async def replay(self, text: str) -> str:
        """Return the id of a replay, given its id or a unique part of it."""
        return text if is_id(text) else await self._find_by_part("/v1/dead-letters/replays", text, "replay")

    async def _find_by_part(
        self, path: str, text: str, noun: str, *, searches: bool = False, largest: int = _PAGE
    ) -> str:
        """Find the object whose id contains ``text``. Lists that cannot search for it are read, newest first."""
        part = text.strip("….").lower()
        if len(part) >= _SHORTEST_PART and all(letter in "0123456789abcdef" for letter in part):
            query = {"tenant": self.tenant, **({"text": part} if searches else {})}
            found = [one for one in await self._candidates(path, query, largest) if part in one.identifier]
            if found:
                return choose_one(found, noun, f"{text!r} is part of {len(found)} ids")
        raise NotFound(f"there is no {noun} {text!r}")

    async def _candidates(self, path: str, query: Mapping[str, object], largest: int = _PAGE) -> list[Candidate]:
        found = await self.pages(path, query, _PAGE, largest=largest)
        return [decode_answer(item, Candidate) for item in found.items]


class ItemPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    items: list[Raw]
    next_cursor: str | None = None


def decode_answer(answer: Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.MsgspecError as error:
        raise StoreUnavailable(f"this is not an answer of the API: {error}") from None


def quote_segment(text: str) -> str:
    """Quote a name for use as one segment of a path."""
    return quote(text, safe="")


@contextmanager
def name_missing(noun: str, name: str) -> Iterator[None]:
    """Name the object in the error if the API does not find it."""
    try:
        yield
    except NotFound as error:
        raise NotFound(str(error).replace("no such object", f"no {noun} {name!r:.80}", 1)) from None


def choose_target(
    profile: str | None, url: str | None, key: str | None, store: str | None, config: Path | None, tenant: str | None
) -> Target:
    """Choose the target: options first, then environment variables, the profile in use, and the settings."""
    given = [name for name, value in (("--profile", profile), ("--url", url), ("--store", store)) if value is not None]
    if len(given) > 1:
        raise Invalid(given[0], f"contradicts {given[1]}", "one of them")
    environment = os.environ
    key = key or environment.get("MAINSPRING_KEY") or None
    if not given and config is None:
        profile = environment.get("MAINSPRING_PROFILE") or None
        if profile is None:
            url = environment.get("MAINSPRING_URL") or None
        if profile is None and url is None and "MAINSPRING_STORE" not in environment:
            profile = profiles.read().use or None
    if profile is not None:
        found = profiles.read().get(profile)
        tenant = tenant or found.tenant or None
        if found.url:
            return Target(url=found.url, key=key or found.secret(), tenant=tenant)
        store = found.store
    if url is not None:
        return Target(url=url, key=key, tenant=tenant)
    return Target(settings=load_settings(None, config, store=store), tenant=tenant)


def store_settings(profile: str | None, store: str | None, config: Path | None) -> Settings:
    """Return the settings of the store, for commands that need direct access to it."""
    target = choose_target(profile, None, None, store, config, None)
    if target.settings is None:
        raise Invalid(
            "--store", "is needed: this command opens the store directly, not through an API", "or a profile with one"
        )
    return target.settings


@asynccontextmanager
async def open_runtime(settings: Settings, *, makes_store: bool) -> AsyncIterator["Runtime"]:
    if settings.store == "memory:":
        raise Invalid("store", "memory: keeps nothing", "a path for SQLite, or postgresql://…")
    if not makes_store and not settings.store.startswith(("postgresql://", "postgres://", "[")):
        from mainspring.config.stores import parse_path

        path = parse_path(settings.store)
        if not path.exists():
            # Otherwise a mistyped path would create an empty store, and the command would report that there is nothing.
            raise StoreUnavailable(f"there is no store {path}; mainspring up or mainspring migrate creates one")
    from mainspring.config.runtime import Runtime

    runtime = Runtime(settings)
    await runtime.open()
    try:
        yield runtime
    finally:
        await runtime.close()


@asynccontextmanager
async def connect(target: Target, *, makes_store: bool = False) -> AsyncIterator[Client]:
    # Import here: help and shell completion need none of this.
    from mainspring.sdk.backends.client import ApiClient

    if target.settings is None:
        from mainspring.config.runtime import system_clock

        remote = ApiClient(target.url, target.key, system_clock(), patience=_PATIENCE)
        try:
            yield Client(remote, target.tenant, is_local=False)
        finally:
            await remote.close()
        return
    from mainspring.cli.client.local import LocalTransport
    from mainspring.config.api import open_local_api

    logs.configure(LogSection(level="error"))
    async with open_runtime(target.settings, makes_store=makes_store) as runtime, open_local_api(runtime) as api:
        local = ApiClient("http://store", None, runtime.clock, transport=LocalTransport(api))
        try:
            yield Client(local, target.tenant, is_local=True)
        finally:
            await local.close()
