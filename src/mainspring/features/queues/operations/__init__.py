"""HTTP operations on queues."""
