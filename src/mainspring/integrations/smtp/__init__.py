"""Mail by SMTP."""
