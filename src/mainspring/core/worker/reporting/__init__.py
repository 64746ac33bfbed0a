"""What an attempt reports while it runs: progress, logs, checkpoints, spans."""
