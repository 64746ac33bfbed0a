"""Submitting, claiming, completing and cleaning up runs on SQLite."""
