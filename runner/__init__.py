"""Executes rounds and appends events; never reads a log except to resume, never draws."""
