"""The HTTP API of the control plane."""
