"""Alerts to Slack, PagerDuty, e-mail and webhooks."""
