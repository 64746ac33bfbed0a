"""Coordination of processes: shards, data centers, labels, clocks and placement."""
