"""API keys, tenants and the audit log."""
