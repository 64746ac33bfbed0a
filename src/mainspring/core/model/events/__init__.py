"""Published events, and records of other systems that become jobs."""
