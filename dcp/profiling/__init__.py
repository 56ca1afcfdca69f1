"""Timelines of plans, measured or simulated: traces, their decomposition, and files of them."""
