"""The contract between runner and analyze: what an event is, and nothing about who writes or reads it."""
