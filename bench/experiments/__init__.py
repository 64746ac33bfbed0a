"""Longer measurements, each started by hand as a program."""
