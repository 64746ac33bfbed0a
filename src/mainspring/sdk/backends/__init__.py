"""Backends of the SDK: a store in this process, or the HTTP API."""
