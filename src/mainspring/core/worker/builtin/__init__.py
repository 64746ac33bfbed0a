"""Tasks that every worker can offer without an application: ``http``, ``shell`` and ``container``."""
