"""Backup, transfer, health, promotion and archiving of a PostgreSQL schema."""
