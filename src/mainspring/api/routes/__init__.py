"""The operations of the API, a resource a file."""
