"""Alert rows: changed in one transaction, only from the newest revision."""

import asyncio

from tests.support.store_harness import Harness


async def test_a_new_store_has_no_alert_rows(harness: Harness) -> None:
    kept = await harness.store.notification_rows()
    assert (kept.rev, dict(kept.rows)) == (0, {})


async def test_alert_rows_are_set_changed_and_removed_in_one_call(harness: Harness) -> None:
    store = harness.store
    assert await store.change_notification_rows(0, {"problem:1": b'{"name":"a"}', "target:ops": b'{"more":1}'})
    assert await store.change_notification_rows(
        1, {"problem:1": None, "target:ops": b"{}", "problem:2": '{"ü":1}'.encode()}
    )
    kept = await store.notification_rows()
    assert kept.rev == 2
    assert dict(kept.rows) == {"target:ops": b"{}", "problem:2": '{"ü":1}'.encode()}


async def test_removing_a_missing_alert_row_is_no_error(harness: Harness) -> None:
    assert await harness.store.change_notification_rows(0, {"problem:1": None})
    assert dict((await harness.store.notification_rows()).rows) == {}


async def test_a_change_of_alert_rows_with_an_old_revision_is_rejected(harness: Harness) -> None:
    store = harness.store
    assert await store.change_notification_rows(0, {"a": b"1"})
    assert not await store.change_notification_rows(0, {"a": b"2", "b": b"2"})
    assert not await store.change_notification_rows(2, {"a": b"3"})
    kept = await store.notification_rows()
    assert (kept.rev, dict(kept.rows)) == (1, {"a": b"1"})


async def test_of_concurrent_changes_of_alert_rows_one_succeeds(harness: Harness) -> None:
    store = harness.store
    for rev in range(3):
        tries = [store.change_notification_rows(rev, {"who": str(number).encode()}) for number in range(4)]
        assert sorted(await asyncio.gather(*tries)) == [False, False, False, True]
    assert (await store.notification_rows()).rev == 3
