"""Infrastructure of every process: services, batches, logs, signals and threads."""
