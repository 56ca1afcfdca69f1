"""Static context-parallel schemes as fixed placements and schedules, one a file."""
