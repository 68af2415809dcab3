"""What one step costs at four levels, from the mechanism alone to the whole model: time, memory, energy."""
