"""Coordination of several processes: shard leases, the clock guard, data centers, scaling."""
