"""Backup, restore, transfer, health and archiving of an SQLite file."""
