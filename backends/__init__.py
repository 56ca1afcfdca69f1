"""Partitioners and schedulers, one a file; reached through dcp.registry."""
