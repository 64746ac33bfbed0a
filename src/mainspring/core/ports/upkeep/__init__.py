"""Ports for maintaining a whole store: schema, backup, transfer, promotion, archive."""
