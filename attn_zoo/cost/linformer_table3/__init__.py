"""Table 3 of the Linformer paper on this machine: the paper's figures, what is measured, and the tables."""
