"""Runs that depend on other runs, and fan-outs."""
