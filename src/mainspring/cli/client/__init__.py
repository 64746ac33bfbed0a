"""How commands reach a store or an API, and what they wait for."""
