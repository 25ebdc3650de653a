"""The built-in job: handwritten digits, averaged over four local workers."""
