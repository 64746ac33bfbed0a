"""``mainspring schedules``, ``plan``, ``apply``, ``cron`` and ``convert``."""
