"""What tasks are made of: examples in memory, division into splits, drawing, tokens, images."""
