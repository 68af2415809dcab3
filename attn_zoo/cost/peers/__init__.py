"""Our Linformer layer against the public package ``linformer``: measured, and as a table."""
