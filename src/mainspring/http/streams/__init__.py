"""Answers that stay open: server-sent events, live logs, waiting claims."""
