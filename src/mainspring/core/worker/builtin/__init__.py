"""Tasks without an application: ``http``, ``shell``, ``container``, and those that deliver alerts and webhooks."""
