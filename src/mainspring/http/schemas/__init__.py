"""The wire format: camelCase names, RFC 3339 times, durations such as ``30s``."""
