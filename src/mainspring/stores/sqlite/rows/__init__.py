"""Values of the model as text for SQLite, and the rows and answers that come back."""
