"""How things run: services that start and stop, loops that tick, batches that gather."""
