"""The zoo inside other people's models."""
