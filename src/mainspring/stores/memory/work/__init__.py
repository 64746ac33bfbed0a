"""Submitting, claiming, completing and cleaning up runs in memory."""
