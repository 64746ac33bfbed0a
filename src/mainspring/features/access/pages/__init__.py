"""Dashboard pages of the audit log, API keys and tenants."""
