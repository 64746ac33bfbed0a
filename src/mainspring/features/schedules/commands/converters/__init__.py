"""Readers of other schedulers' schedules. Each makes entries of a schedules file, and says what it left."""
