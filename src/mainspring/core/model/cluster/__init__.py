"""Coordination of processes: shards, data centers, labels, clocks, placement, health and scaling."""
