"""The task catalog."""
