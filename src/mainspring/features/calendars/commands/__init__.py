"""``mainspring calendars``."""
