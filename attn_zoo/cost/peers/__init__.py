"""Our layers against those of public packages: who is compared with whom, the measurement, and its table."""
