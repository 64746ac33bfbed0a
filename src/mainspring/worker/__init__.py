"""The data plane: claim, execute, report."""
