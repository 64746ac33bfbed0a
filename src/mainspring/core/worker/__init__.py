"""Claiming runs, executing them and reporting their outcome."""
