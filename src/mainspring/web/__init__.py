"""The dashboard: pages for people, made of the API's own operations."""
