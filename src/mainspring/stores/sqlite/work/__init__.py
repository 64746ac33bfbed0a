"""SQLite: submitting, claiming, completing and cleaning up runs."""
