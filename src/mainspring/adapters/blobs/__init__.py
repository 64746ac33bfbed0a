"""Objects by name: in a folder, or in a bucket."""
