"""Executors of handlers: on the event loop, in a thread, in a child process."""
