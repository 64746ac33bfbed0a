"""Queues: depth, pauses and policies."""
