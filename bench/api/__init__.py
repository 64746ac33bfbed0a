"""Measurements of the HTTP API."""
