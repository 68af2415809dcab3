"""Look of every plot: one theme for light and dark mode, labels that do not overlap, and reproducible files."""
