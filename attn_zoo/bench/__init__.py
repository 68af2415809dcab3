"""Measurement of time and memory on this machine. An experiment has a list of cases to measure, called cells, and a report."""
