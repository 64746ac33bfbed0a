"""Logs that requests for jobs come by."""
