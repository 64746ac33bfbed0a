"""The reports of running attempts: progress, logs, checkpoints, spans."""
