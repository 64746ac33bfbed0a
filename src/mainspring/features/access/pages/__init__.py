"""Pages of the audit, the keys and the tenants."""
