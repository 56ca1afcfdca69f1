"""Oracles, strategies and checks that prove plans right."""
