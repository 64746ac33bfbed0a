"""Mutation testing: change one place of the code, run the tests that cover it, and report the changes that pass.

``make mutants`` runs it; docs/contributing/mutants.md describes it.
"""
