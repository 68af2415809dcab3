"""Building blocks of tasks: examples in memory, division into splits, random drawing, tokenisers and images."""
