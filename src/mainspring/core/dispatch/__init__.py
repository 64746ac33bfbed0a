"""Telling workers that runs wait, through brokers."""
