"""The guarded client for HTTP calls that users ask for."""
