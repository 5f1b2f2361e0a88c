"""What a run tells the world: its event log, Prometheus metrics, console and summary."""
