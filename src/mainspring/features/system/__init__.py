"""The system page: settings, versions and findings."""
