"""Breaks a running cluster on purpose, again and again, under load, and has the judge say what came of it.

    make chaos CHAOS_ARGS="--faults kill-scheduler,cut-worker --repetitions 3"

Real processes on one machine, and PostgreSQL that makes commits last. Every process reaches PostgreSQL by a link of its
own that can be cut, fall silent one way or both, or lead to another server. All the while crons tick every second and
runs are submitted over HTTP. Handlers write down their starts outside the store.
"""
