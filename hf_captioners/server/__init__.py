"""HTTP server for captions; simultaneous requests are captioned in batches."""
