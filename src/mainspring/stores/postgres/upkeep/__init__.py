"""Backup, transfer, health, promotion, archiving and placement moves of a PostgreSQL schema."""
