"""Usage and budgets."""
