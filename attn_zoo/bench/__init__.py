"""Measurement of time and memory on this machine. An experiment is a grid of cells that one engine measures, and a report."""
