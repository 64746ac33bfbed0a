"""What is kept of notifications: changed by whoever has seen the newest, all of it or nothing."""

import asyncio

from tests.support.store_harness import Harness


async def test_at_first_there_is_nothing(harness: Harness) -> None:
    kept = await harness.store.notification_rows()
    assert (kept.rev, dict(kept.rows)) == (0, {})


async def test_rows_are_set_changed_and_taken_away_together(harness: Harness) -> None:
    store = harness.store
    assert await store.change_notification_rows(0, {"problem:1": b'{"name":"a"}', "lane:ops": b'{"more":1}'})
    assert await store.change_notification_rows(
        1, {"problem:1": None, "lane:ops": b"{}", "problem:2": '{"ü":1}'.encode()}
    )
    kept = await store.notification_rows()
    assert kept.rev == 2
    assert dict(kept.rows) == {"lane:ops": b"{}", "problem:2": '{"ü":1}'.encode()}


async def test_to_take_away_what_is_not_there_is_no_mistake(harness: Harness) -> None:
    assert await harness.store.change_notification_rows(0, {"problem:1": None})
    assert dict((await harness.store.notification_rows()).rows) == {}


async def test_who_has_not_seen_the_newest_changes_nothing(harness: Harness) -> None:
    store = harness.store
    assert await store.change_notification_rows(0, {"a": b"1"})
    assert not await store.change_notification_rows(0, {"a": b"2", "b": b"2"})
    assert not await store.change_notification_rows(2, {"a": b"3"})
    kept = await store.notification_rows()
    assert (kept.rev, dict(kept.rows)) == (1, {"a": b"1"})


async def test_of_several_who_change_it_at_once_one_does(harness: Harness) -> None:
    store = harness.store
    for rev in range(3):
        tries = [store.change_notification_rows(rev, {"who": str(number).encode()}) for number in range(4)]
        assert sorted(await asyncio.gather(*tries)) == [False, False, False, True]
    assert (await store.notification_rows()).rev == 3
