"""Golden file: every figure of every generated table, and the program that compares it with what the code makes now."""
