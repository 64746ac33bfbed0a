"""Metrics of a process: their declarations, counters and rendering for Prometheus."""
