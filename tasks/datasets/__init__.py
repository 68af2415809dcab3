"""Published data sets of tasks: locations and formats of their files."""
