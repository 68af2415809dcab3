"""Published data sets of tasks: where their files lie, and which format they have."""
