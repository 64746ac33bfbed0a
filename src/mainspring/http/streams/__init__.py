"""Answers that go on: server-sent events, live logs, waiting claims."""
