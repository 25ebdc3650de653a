"""Reads logs of runs and answers questions about them; never writes into a log, never imports the runner."""
