"""Mainspring beside pgqueuer, the fastest of its peers, on the same server in the same hour: ``make peers-bench``."""
