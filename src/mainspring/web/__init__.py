"""The dashboard: pages for people, built on the operations of the API."""
