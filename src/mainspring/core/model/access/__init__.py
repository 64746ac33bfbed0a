"""Tenants, roles, permissions and requirements for credentials."""
