"""Published data sets that tasks read: where their files lie and what is in them."""
