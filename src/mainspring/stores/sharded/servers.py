"""The servers of a sharded store: which of them owns which placement group, and which of them to ask."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.model.cluster.placement import choose_placement_group, count_placement_groups, find_placement_group
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.sharded.joining import join
from mainspring.stores.sharded.server import Server, WrongServer

T = TypeVar("T")
Item = TypeVar("Item")

#: How often one request may read an outdated placement map again: a group may move twice meanwhile.
_ROUNDS = 3
#: How long to wait for slower servers after the first answer.
_STRAGGLER: Micros = 1_500 * MILLISECOND


class ServerSet:
    def __init__(self, servers: Sequence[Server]) -> None:
        #: The servers, in the order of their numbers once they are open.
        self.all = list(servers)
        self.shards = 0
        self.groups = 0
        self._homes: dict[int, Server] = {}
        self._versions: dict[int, int] = {}
        self._by_digits: dict[str, int] = {}

    async def open(self) -> None:
        """Connect to the available servers. New servers join, which needs all of them."""
        outcomes = await asyncio.gather(*(server.open() for server in self.all), return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for problem in refused:
            if not isinstance(problem, StoreUnavailable) or len(refused) == len(self.all):
                await self.close()
                raise problem
        try:
            self.shards = await join(self.all)
            self.groups = count_placement_groups(self.shards)
            await self.read_map()
        except BaseException:
            await self.close()
            raise
        for server, outcome in zip(list(self.all), outcomes, strict=True):
            server.came_back = self._came_back
            if isinstance(outcome, BaseException):
                server.doubt()
        self.all.sort(key=lambda server: (server.number < 0, server.number))

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self.all), return_exceptions=True)

    async def _came_back(self, server: Server) -> None:
        await join(self.all)
        self.all.sort(key=lambda one: (one.number < 0, one.number))
        await self.read_map()

    async def read_map(self) -> None:
        """Read the placement map from every server. An unavailable server is assumed to own what it owned before."""
        there = [server for server in self.all if not server.away]
        statuses = await asyncio.gather(*(server.ask(PostgresStore.status) for server in there), return_exceptions=True)
        for server, status in zip(there, statuses, strict=True):
            if isinstance(status, StoreUnavailable):
                continue
            if isinstance(status, BaseException):
                raise status
            server.status = status
            for group in [group for group, home in self._homes.items() if home is server]:
                if group not in status.groups:
                    del self._homes[group], self._versions[group]
            for group, version in status.groups.items():
                if version >= self._versions.get(group, 0):
                    self._versions[group] = version
                    self._homes[group] = server

    @property
    def homes(self) -> dict[int, Server]:
        return dict(self._homes)

    def home(self, group: int) -> Server:
        server = self._homes.get(group)
        if server is None:
            raise StoreUnavailable(
                f"placement group {group} is moving, or its server is unavailable or not named in the setting store"
            )
        return server

    def of_id(self, identifier: str) -> int:
        # Cached by the digits that hold the shard: millions of ids have the same few.
        digits = identifier[16:20]
        group = self._by_digits.get(digits)
        if group is None:
            group = self._by_digits[digits] = find_placement_group(identifier, self.groups)
        return group

    def of_tenant(self, tenant: str, placement: str = "") -> int:
        return choose_placement_group(tenant, placement, self.groups)

    async def at(
        self,
        group: int,
        call: Callable[[PostgresStore], Awaitable[T]],
        missing: Callable[[T], bool] = lambda _: False,
    ) -> T:
        """Ask the server of a placement group. If the answer is ``missing`` and the map was outdated, ask again."""

        async def ask(store: PostgresStore, _: Sequence[int]) -> list[T]:
            return [await call(store)]

        [answer] = await self.spread([group], lambda group: group, ask, missing)
        return answer

    async def spread(
        self,
        items: Sequence[Item],
        group_of: Callable[[Item], int],
        call: Callable[[PostgresStore, Sequence[Item]], Awaitable[Sequence[T]]],
        missing: Callable[[T], bool] = lambda _: False,
    ) -> list[T]:
        """Ask the server of each item; return the answers in order. Raises ``PartialAnswer`` if some did not answer.

        An item with a ``missing`` answer is asked for again if the placement map was outdated.
        """
        answers: dict[int, T] = {}
        todo = list(range(len(items)))
        error: StoreUnavailable | None = None
        for _ in range(_ROUNDS):
            asked_by = self._versions.copy()
            groups: dict[Server, list[int]] = {}
            error = None
            by_group: dict[int, list[int]] = {}
            for number in todo:
                by_group.setdefault(group_of(items[number]), []).append(number)
            for at, numbers in by_group.items():
                try:
                    groups.setdefault(self.home(at), []).extend(numbers)
                except StoreUnavailable as unknown:
                    error = unknown
            if len(by_group) > 1:
                for group in groups.values():
                    group.sort()
            found, failed = await self._ask_groups(groups, items, call)
            if len(found) == len(items) and not any(map(missing, found.values())):
                return list(found.values()) if len(groups) == 1 else [found[number] for number in range(len(items))]
            answers |= found
            error = next((problem for problem in failed.values() if not isinstance(problem, WrongServer)), error)
            open_ones = [number for number in todo if number not in answers or missing(answers[number])]
            if not open_ones:
                break
            # The map may have been outdated. An item that the newest map does not find does not exist.
            await self.read_map()
            todo = [
                number
                for number in open_ones
                if self._versions.get(at := group_of(items[number])) != asked_by.get(at) or at not in self._homes
            ]
            if not todo:
                break
            for number in todo:
                answers.pop(number, None)
        if len(answers) < len(items):
            raise PartialAnswer(
                str(error or "placement groups are being moved"),
                [answers.get(number) for number in range(len(items))],
            ) from error
        return [answers[number] for number in range(len(items))]

    async def _ask_groups(
        self,
        groups: dict[Server, list[int]],
        items: Sequence[Item],
        call: Callable[[PostgresStore, Sequence[Item]], Awaitable[Sequence[T]]],
    ) -> tuple[dict[int, T], dict[Server, StoreUnavailable]]:
        async def ask(server: Server, group: list[int]) -> Sequence[T]:
            mine = items if len(group) == len(items) else [items[number] for number in group]
            return await server.ask(lambda store: call(store, mine))

        if len(groups) == 1:
            [(server, group)] = groups.items()
            try:
                return dict(zip(group, await ask(server, group), strict=True)), {}
            except StoreUnavailable as error:
                return {}, {server: error}
        outcomes = await asyncio.gather(*(ask(*group) for group in groups.items()), return_exceptions=True)
        found: dict[int, T] = {}
        failed: dict[Server, StoreUnavailable] = {}
        for (server, group), outcome in zip(groups.items(), outcomes, strict=True):
            if isinstance(outcome, StoreUnavailable):
                failed[server] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                found |= zip(group, outcome, strict=True)
        return found, failed

    async def everywhere(self, call: Callable[[PostgresStore], Awaitable[T]]) -> list[T]:
        """Ask all servers at once; fails if one is unavailable. The answers are in the order of the server numbers."""
        outcomes = await asyncio.gather(*(server.ask(call) for server in self.all), return_exceptions=True)
        return list(_all_or_raise(outcomes))

    async def one_after_the_other(self, call: Callable[[PostgresStore], Awaitable[T]]) -> list[T]:
        """Apply a change that every server must have, one server after the other.

        If a server is known to be unavailable, it fails before the first call.
        """
        away = [str(server) for server in self.all if server.away]
        if away:
            raise StoreUnavailable(
                f"a change that every server must have needs all of them; unavailable: {', '.join(away)}"
            )
        return [await server.ask(call) for server in self.all]

    async def those_there(self, call: Callable[[PostgresStore], Awaitable[T]]) -> dict[Server, T]:
        """Ask all available servers at once; fails if none answers. Slow servers are waited for only briefly."""
        asked = {asyncio.create_task(server.ask(call)): server for server in self.all if not server.away}
        if not asked:
            raise StoreUnavailable("every server of the store is unavailable")
        try:
            done, late = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            if late:
                more, late = await asyncio.wait(late, timeout=_STRAGGLER / SECOND)
                done |= more
        except BaseException:
            for task in asked:
                task.cancel()
            raise
        for task in late:
            task.cancel()
            asked[task].doubt()
        answers: dict[Server, T] = {}
        error: BaseException | None = None
        for task, server in asked.items():
            if task in done:
                failure = task.exception()
                if failure is None:
                    answers[server] = task.result()
                elif not isinstance(failure, StoreUnavailable):
                    raise failure
                else:
                    error = failure
        if not answers:
            raise error or StoreUnavailable("no server of the store answers")
        return answers

    async def any(self, call: Callable[[PostgresStore], Awaitable[T]]) -> T:
        """Return the answer of the first server that answers."""
        error: StoreUnavailable | None = None
        for server in self.all:
            try:
                return await server.ask(call)
            except StoreUnavailable as failure:
                error = failure
        raise error or StoreUnavailable("the store has no servers")


class PartialAnswer(StoreUnavailable):
    """Some servers did not answer. ``answers`` holds the other answers, and None where there is none."""

    def __init__(self, message: str, answers: Sequence[object]) -> None:
        super().__init__(message)
        self.answers = answers


def _all_or_raise(outcomes: Iterable[T | BaseException]) -> Iterable[T]:
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        yield outcome
