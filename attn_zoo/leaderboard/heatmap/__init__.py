"""The heat map of mechanisms by tasks: scores shaded from the best control of each task."""
