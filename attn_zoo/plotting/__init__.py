"""Look of every picture: one theme for a light and a dark page, labels that do not overlap, and files that are written alike."""
