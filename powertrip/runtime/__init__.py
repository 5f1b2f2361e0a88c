"""The real run: one process a site, a coordinator beside rank 0's, a supervisor above each."""
