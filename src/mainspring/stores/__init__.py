"""The stores: statements and access to rows. The rules are in ``core/model``."""
