"""What the real run and the simulation share: what is seen, decided, accounted and told."""
