"""Where a handler runs: on the loop, in a thread, in a child process."""
