"""How time and memory of layers grow with length: measured, fitted, and as a table."""
