"""HTTP in front of the control plane."""
