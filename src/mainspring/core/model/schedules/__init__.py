"""Recurring jobs: schedules, calendars, catch-up and upcoming ticks."""
