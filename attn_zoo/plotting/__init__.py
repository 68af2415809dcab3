"""Common look of all plots: a theme for light and dark mode, and reproducible files."""
