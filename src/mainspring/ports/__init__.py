"""What we need: Protocols whose docstrings are the contracts, held by the suites under tests/contracts."""
