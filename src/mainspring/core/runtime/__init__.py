"""What every process needs: services, batches, logs, signals and threads."""
