"""The sections of the settings, each with its checks."""
