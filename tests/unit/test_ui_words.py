"""The words of the dashboard: schedules with their time zone, sentences of the API."""

import pytest

from mainspring.features.jobs.pages.jobs import describe_schedule
from mainspring.http.schemas.job_answers import JobOut
from mainspring.web.formatting import sentence


def a_job(cron: str, timezone: str) -> JobOut:
    return JobOut(
        job_id="0" * 32,
        status="scheduled",
        schedule_type="cron",
        task="t",
        tenant="default",
        queue="default",
        priority=5,
        created_at="2026-11-20T00:00:00Z",
        cron_expression=cron,
        timezone=timezone,
    )


@pytest.mark.parametrize(
    ("cron", "timezone", "words"),
    [
        ("0 9 * * *", "UTC", "every day at 09:00, UTC"),
        ("0 9 * * *", "Asia/Tokyo", "every day at 09:00, Asia/Tokyo"),
        ("*/2 * * * *", "UTC", "every 2 minutes"),
        ("*/2 * * * *", "Asia/Tokyo", "every 2 minutes, Asia/Tokyo"),
    ],
)
def test_a_schedule_with_a_time_of_day_names_its_zone(cron: str, timezone: str, words: str) -> None:
    assert describe_schedule(a_job(cron, timezone)) == words


def test_a_sentence_starts_with_a_capital_letter() -> None:
    assert sentence("no live worker serves queue 'mail'") == "No live worker serves queue 'mail'"
    assert sentence("") == ""
