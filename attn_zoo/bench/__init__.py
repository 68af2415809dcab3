"""Measurement of time and memory on this machine: experiments are grids of cells, measured by one engine, and reports."""
