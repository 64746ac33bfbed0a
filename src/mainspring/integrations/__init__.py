"""Clients of other people's servers. One folder each."""
