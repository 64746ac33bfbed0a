"""Converters of other schedulers' schedules. Each produces entries of a schedules file and reports what it left out."""
