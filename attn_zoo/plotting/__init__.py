"""Common look of all plots: a theme for light and dark mode, labels that do not overlap, and reproducible files."""
