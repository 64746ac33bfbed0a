"""Integrations with web frameworks. Mainspring imports none of them by itself."""
