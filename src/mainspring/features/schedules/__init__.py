"""Schedules as code, the schedules file, cron tools and converters of other schedulers."""
