"""Events that the engine publishes, and records that become jobs."""
