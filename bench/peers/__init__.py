"""Mainspring beside its peers, in turns on one server: ``make peers-bench``."""
