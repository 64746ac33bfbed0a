"""Schedules as code, the schedules file and cron tools."""
