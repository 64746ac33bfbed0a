"""Logs of ended runs, packed and stored outside the database."""
