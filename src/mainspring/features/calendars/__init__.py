"""Calendars: holidays, business hours, freezes."""
