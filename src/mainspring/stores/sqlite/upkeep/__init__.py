"""Backup, transfer, health and archiving of a SQLite file."""
