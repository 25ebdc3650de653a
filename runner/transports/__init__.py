"""One small module a transport; none knows that it is traced."""
