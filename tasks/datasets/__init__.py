"""Published data sets that tasks use: where their files must be, and which format they have."""
