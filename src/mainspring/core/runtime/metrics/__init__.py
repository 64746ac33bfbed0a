"""Figures of a process: what is counted, where it is counted, how it is told to Prometheus."""
